"""What attackers of LLM servers send: refused by name, without effect on a stream beside it."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from legato.core.config import ServerConfig
from legato.tokenization.tokenizer import Tokenizer
from tests.api.contract.live import Live, serve
from tests.api.openai_calls import USER
from tests.tiny_model import write_tiny_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def watched(live: Live) -> Iterator[Live]:
    """The server, while a stream runs."""
    with live.beside_a_stream():
        yield live


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 10**6},
        {"n": -1},
        {"best_of": 10**6},
        {"prompt": ["a"] * 10_000, "n": 100},
        {"logprobs": 10**6},
        {"prompt_logprobs": -1},
    ],
)
def test_numbers_that_multiply_work_are_refused(watched: Live, fields: dict[str, Any]) -> None:
    assert watched.error(COMPLETIONS, **fields)["param"] in fields


@pytest.mark.parametrize(
    "call",
    [
        "cycler.__init__.__globals__.os.system('touch MARK')",
        "''.__class__.__mro__[1].__subclasses__()[104]().load_module('os').system('touch MARK')",
        "self._TemplateReference__context.environment.globals",
        "lipsum.__globals__['os'].popen('touch MARK').read()",
    ],
)
def test_template_of_a_model_runs_no_code(tmp_path: Path, call: str) -> None:
    mark = tmp_path / "mark"
    template = "{{ messages[0].content }}{{ " + call.replace("MARK", str(mark)) + " }}"
    with serve(write_tiny_model(tmp_path / "model", chat_template=template)) as live, live.beside_a_stream():
        response = live.http.post(CHAT, json={"messages": [USER], "max_tokens": 1})
        assert response.status_code in (200, 400)  # an attribute that is not there is an empty text
        assert "object" not in live.http.get("/tokenizer_info").json().get("rendered", "")
    assert not mark.exists()


def test_template_in_a_request_is_refused(watched: Live) -> None:
    assert watched.error(CHAT, chat_template="{{ 7 * 7 }}")["param"] == "chat_template"


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "something"},
        {"type": "string", "pattern": "("},
        {"type": "string", "enum": [str(i) for i in range(10**5)]},
        {"$ref": "http://127.0.0.1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        deep_schema(400),
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_schemas_that_kill_compilers_are_refused_by_name(watched: Live, schema: dict[str, Any]) -> None:
    error = watched.error(
        CHAT, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert error["param"].startswith("response_format")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "string", "pattern": "(a{1,9999}){1,9999}"},
        {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    ],
)
def test_schemas_that_only_look_dangerous_do_no_harm(watched: Live, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [USER], "max_tokens": 4, "response_format": form}
    assert watched.http.post(CHAT, json=body).status_code in (200, 400)


def test_holders_of_keys_see_nothing_of_what_others_asked(tiny_model: Path) -> None:
    body = {"prompt": "a secret prompt that is longer than two pages of tokens", "max_tokens": 1}
    with serve(tiny_model, ServerConfig(api_key=("key-a", "key-b"))) as live:

        def cached(key: str) -> int:
            response = live.http.post(COMPLETIONS, json=body, headers={"authorization": f"Bearer {key}"})
            details = response.json()["usage"].get("prompt_tokens_details") or {}
            num_tokens: int = details.get("cached_tokens", 0)
            return num_tokens

        assert [cached("key-a"), cached("key-a"), cached("key-b"), cached("key-b")] == [0, 48, 0, 48]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_server_fetches_nothing_that_a_request_names(watched: Live, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        for address in (url, "file:///etc/hostname", "data:text/plain,x"):
            content = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": address}}]
            error = watched.error(CHAT, messages=[{"role": "user", "content": content}])
            assert error["param"].startswith("messages.0.content.1")
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0", "..%2f..%2fetc", "x" * 5000])
def test_names_of_models_are_never_paths(watched: Live, name: str) -> None:
    response = watched.http.post(COMPLETIONS, json={"prompt": "a", "model": name})
    absent = watched.http.post(COMPLETIONS, json={"prompt": "a", "model": "no-such-model"})
    assert response.status_code == absent.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "passwd" not in response.json()["error"]["message"].replace(name, "")
    assert watched.http.get(f"/v1/models/{name.replace(chr(0), '%00')}").status_code == 404


def test_five_megabytes_of_text_are_refused_before_anything_reads_them(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live.beside_a_stream():
        encode = Tokenizer.encode

        def encode_short(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
            assert len(text) < 10_000
            return encode(self, text, add_special_tokens)

        monkeypatch.setattr(Tokenizer, "encode", encode_short)
        for text in ("a " * (5 * 2**19), "a" * (5 * 2**20)):
            assert live.error(COMPLETIONS, prompt=text)["code"] == "context_length_exceeded"
            messages = [{"role": "user", "content": text}]
            assert live.error(CHAT, messages=messages)["code"] == "context_length_exceeded"
