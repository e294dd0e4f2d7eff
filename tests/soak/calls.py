"""Calls of a server over connections of their own, and what an answer must be to count as the right one."""

import asyncio
import json
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

PATIENCE_S = 120.0
FORM = {
    "type": "object",
    "properties": {"name": {"enum": ["do", "re", "mi"]}, "count": {"type": "integer", "maximum": 999}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
BAD_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": "a", "n": 0}',
    b'{"prompt": "a", "max_tokens": 100000}',
    b'{"prompt": "a", "temperature": 1e999}',
    b'{"prompt": [999999]}',
    b'{"prompt": "a", "stop": ' + b"[" * 2000 + b"}",
    b'{"prompt": "' + b"a" * 200_000 + b'"}',
)


@dataclass(frozen=True)
class Call:
    """One request as it is sent."""

    path: str
    body: dict[str, Any]

    def encoded(self, *, stream: bool) -> bytes:
        return encode(self.path, json.dumps(self.body | {"stream": stream}).encode())


def encode(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def random_call(random: Random) -> Call:
    """Greedy, seeded, penalised, with stop texts, in several answers, or held to a form."""
    options: dict[str, Any] = {
        "max_tokens": random.randrange(1, 80),
        "temperature": random.choice([0, 1]),
        "seed": random.randrange(1000),
        "ignore_eos": random.random() < 0.7,
        "n": random.choice([1, 1, 1, 2, 4]),
    }
    words = " ".join(
        random.choice(["ab", "the", "한국", "é", "🧑‍🚀", "x"]) for _ in range(random.randrange(1, 40))
    )
    kind = random.randrange(4)
    if kind == 0:
        options["frequency_penalty"] = 0.5
    if kind == 1:
        options["stop"] = ["ab", "q"]
    if kind == 2:
        options |= {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}}}
        options |= {"ignore_eos": False, "max_tokens": 60}
    if random.random() < 0.5:
        return Call("/v1/completions", {"prompt": words} | options)
    return Call("/v1/chat/completions", {"messages": [{"role": "user", "content": words}]} | options)


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """Status and body; 0 when the connection ended before the answer did."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            received = await reader.read()
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body, is_whole = _joined(body)
        if not is_whole:
            return 0, body
    return int(head[9:12] or 0), body


def answers_in(body: bytes, *, stream: bool) -> list[tuple[str, str]]:
    """Text and reason of each answer in order. Raises ValueError unless each ended exactly once."""
    answers: dict[int, list[str]] = {}
    ends: dict[int, list[str]] = {}
    for choice in _choices(body, stream=stream):
        said = choice.get("delta") or choice.get("message") or {}
        answers.setdefault(choice["index"], []).append(choice.get("text") or said.get("content") or "")
        if choice["finish_reason"] is not None:
            ends.setdefault(choice["index"], []).append(choice["finish_reason"])
    if ends.keys() != answers.keys() or any(len(reasons) != 1 for reasons in ends.values()):
        raise ValueError(f"ends of answers: {ends}")
    return [("".join(answers[index]), ends[index][0]) for index in sorted(answers)]


def error_code(body: bytes) -> str:
    """Of an error's body or event; "" when there is none."""
    found = re.findall(rb'"code": ?"(\w+)"', body)
    return found[-1].decode() if found else ""


def stalled_connection(port: int, request: bytes) -> socket.socket:
    """A connection that has sent its request, and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(request)
    return connection


def _choices(body: bytes, *, stream: bool) -> Iterable[dict[str, Any]]:
    if not stream:
        yield from json.loads(body)["choices"]
        return
    events = [event for event in body.decode().split("\n\n") if event.startswith("data: ")]
    if events[-1:] != ["data: [DONE]"]:
        raise ValueError("a stream without its end")
    for event in events[:-1]:
        yield from json.loads(event[6:])["choices"]


def _joined(body: bytes) -> tuple[bytes, bool]:
    """A chunked body, and whether its end has come."""
    pieces = []
    while True:
        size, separator, rest = body.partition(b"\r\n")
        if not separator or len(rest) < int(size, 16) + 2:
            return b"".join(pieces), False
        if int(size, 16) == 0:
            return b"".join(pieces), True
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
