"""What `vllm bench serve` sends, and our streams read by its rules: a token's time is that of its event."""

import http.client
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.conftest import Server

HEADERS = {
    "Content-Type": "application/json",
    "Authorization": "Bearer sk-none",
    "x-request-id": "bench-7f3a-0",
}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
COMPLETION = {
    "model": "tiny",
    "prompt": "Once upon a time",
    "repetition_penalty": 1.0,
    "max_tokens": 24,
    "logprobs": None,
    **STREAMED,
    "ignore_eos": True,
}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]}],
    "max_completion_tokens": 24,
    **STREAMED,
    "ignore_eos": True,
}
# name -> path, body: as the client builds them for its backends, with its flags for temperature and ids
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/completions", COMPLETION),
    "openai, greedy": ("/v1/completions", {**COMPLETION, "temperature": 0.0}),
    "openai, ids": ("/v1/completions", {**COMPLETION, "prompt": [72, 101, 108, 108, 111]}),
    "openai, penalised": ("/v1/completions", {**COMPLETION, "repetition_penalty": 1.2, "top_p": 0.9}),
    "openai, one token": ("/v1/completions", {**COMPLETION, "max_tokens": 1}),
    "openai-chat": ("/v1/chat/completions", CHAT),
    "openai-chat, greedy": ("/v1/chat/completions", {**CHAT, "temperature": 0.0}),
}


@dataclass
class BenchOutput:
    """What the client records of one answer."""

    text: str = ""
    num_samples: int = 0  # the first is the time to the first token, each further one a gap between tokens
    first_text: str | None = None
    output_len: int | None = None
    errors: list[str] = field(default_factory=list)


def messages(pieces: Iterable[bytes]) -> Iterator[str]:
    """Split at blank lines; each piece is decoded by itself, so none may end inside a character.

    An event whose blank line has not come yet is taken as soon as its JSON is whole.
    """
    buffer = ""
    for piece in pieces:
        buffer += piece.decode()
        while "\n\n" in buffer:
            message, buffer = buffer.split("\n\n", 1)
            if message.strip():
                yield message.strip()
        rest = buffer.removeprefix("data: ").strip()
        if buffer.startswith("data: ") and rest:
            if rest != "[DONE]":
                try:
                    json.loads(rest)
                except json.JSONDecodeError:
                    continue
            yield buffer.strip()
            buffer = ""


def read_answer(pieces: Iterable[bytes]) -> BenchOutput:
    output = BenchOutput()
    for message in messages(pieces):
        if message.startswith(":"):
            continue
        data = message.removeprefix("data: ")
        if data == "[DONE]":
            continue
        event = json.loads(data)
        if choices := event.get("choices"):
            choice = choices[0]
            text = (choice["delta"].get("content") if "delta" in choice else choice.get("text")) or ""
            output.first_text = text if output.first_text is None else output.first_text
            output.num_samples += 1
            output.text += text
        elif usage := event.get("usage"):
            output.output_len = usage.get("completion_tokens")
        else:
            output.errors.append(data)
    return output


def pieces_of(server: Server, path: str, body: dict[str, Any]) -> list[bytes]:
    """The body as it arrives, chunk by chunk."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), HEADERS)
    response = connection.getresponse()
    assert (response.status, response.reason) == (200, "OK")
    assert response.getheader("content-type", "").startswith("text/event-stream")
    pieces = list(iter(lambda: response.read1(), b""))
    connection.close()
    return pieces


@pytest.mark.parametrize("name", REQUESTS)
def test_client_counts_what_was_generated(server: Server, name: str) -> None:
    path, body = REQUESTS[name]
    output = read_answer(pieces_of(server, path, body))
    max_tokens = body.get("max_tokens") or body["max_completion_tokens"]
    assert output.errors == []
    assert output.output_len == max_tokens
    assert 1 <= output.num_samples <= max_tokens


@pytest.mark.parametrize("name", ["openai, greedy", "openai-chat, greedy"])
def test_client_reads_the_text_that_a_whole_answer_has(server: Server, name: str) -> None:
    path, body = REQUESTS[name]
    whole = {key: value for key, value in body.items() if key not in STREAMED}
    [choice] = server.post(path, whole)[1]["choices"]
    expected = choice["text"] if "text" in choice else choice["message"]["content"]
    assert read_answer(pieces_of(server, path, body)).text == expected != ""


@pytest.mark.parametrize("name", ["openai, greedy", "openai-chat, greedy"])
def test_first_token_of_the_client_is_a_token(server: Server, name: str) -> None:
    """A chunk with a role alone would tell the client of a first token before there is one."""
    assert read_answer(pieces_of(server, *REQUESTS[name])).first_text


@pytest.mark.parametrize("num_chars", [1, 7, 64])
def test_reading_by_other_pieces_reads_the_same(server: Server, num_chars: int) -> None:
    pieces = pieces_of(server, *REQUESTS["openai, greedy"])
    text = b"".join(pieces).decode()
    cut = [text[start : start + num_chars].encode() for start in range(0, len(text), num_chars)]
    assert read_answer(cut) == read_answer(pieces)
