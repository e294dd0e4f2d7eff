"""Asks an OpenAI server for streamed completions, with as little work as can be while it is measured."""

import asyncio
import json
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from legato.bench.endpoint import BenchError, TimedAnswer
from legato.bench.http_call import call
from legato.bench.works import WorkRequest
from legato.core.errors import ConfigError

ANSWER_TIMEOUT_S = 1800.0
CONNECT_TIMEOUT_S = 10.0
SHOWN_BYTES = 300  # of an answer that is an error

Timed = tuple[float, bytes]  # time.perf_counter() when it came, and what came


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """POST /v1/completions of a server, with what every server knows.

    The client shares its cores with the server, so packets are only stored with their times; they are read
    when the answer is over.
    """

    name: str
    host: str
    port: int
    prefix: str
    model: str

    async def complete(self, request: WorkRequest) -> TimedAnswer:
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                packets = await _exchange(self.host, self.port, self._post(request))
        except TimeoutError as error:
            raise BenchError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s") from error
        except OSError as error:
            raise BenchError(f"the connection failed: {error}") from error
        return read_answer(started_s, packets)

    def _post(self, request: WorkRequest) -> bytes:
        body = json.dumps(
            {
                "model": self.model,
                "prompt": request.token_ids,
                "max_tokens": request.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST {self.prefix}/v1/completions HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return "\r\n".join([*head, "", ""]).encode() + body


def open_endpoint(name: str, url: str, model: str | None = None) -> HttpEndpoint:
    """The server at http://HOST:PORT; `model` is by default the first one that it lists.

    Raises ConfigError for another kind of URL or when nothing answers there, BenchError for a wrong answer.
    """
    host, port, prefix = read_url(url)
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{url}: nothing answers there ({reason}); start the server or correct the address"
        ) from error
    if model is None:
        models = call(name, (host, port), "GET", f"{prefix}/v1/models")["data"]
        model = str(models[0]["id"])
    return HttpEndpoint(name, host, port, prefix, model)


def read_url(url: str) -> tuple[str, int, str]:
    """Host, port and the path before /v1. Raises ConfigError unless it is http://HOST[:PORT][/PATH]."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError("another kind of URL")
        return parts.hostname, parts.port or 80, parts.path.rstrip("/").removesuffix("/v1")
    except ValueError as error:  # also for a port that is none, and a bracket that is not closed
        raise ConfigError(f"{url}: expected a URL like http://127.0.0.1:8000") from error


class _Exchange(asyncio.Protocol):
    """One request on a connection of its own; `ended` holds why the connection was lost, None if in order."""

    def __init__(self, request: bytes) -> None:
        self.packets: list[Timed] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.packets.append((time.perf_counter(), data))
        if b"data: [DONE]" in data:  # not every server closes because it is asked to
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


async def _exchange(host: str, port: int, request: bytes) -> list[Timed]:
    loop = asyncio.get_running_loop()
    transport, exchange = await loop.create_connection(lambda: _Exchange(request), host, port)
    try:
        error = await exchange.ended
    finally:
        transport.abort()
    if error is not None:
        raise error
    return exchange.packets


def read_answer(started_s: float, packets: Iterable[Timed]) -> TimedAnswer:
    """The times of the tokens in a streamed answer. Raises BenchError when it is none, or has no usage."""
    times, num_tokens, ended_s = [], None, started_s
    for ended_s, event in _events(packets):
        if event.get("error"):
            raise BenchError(str(event["error"])[:SHOWN_BYTES])
        if any(
            choice.get("text") or not choice.get("finish_reason") for choice in event.get("choices") or ()
        ):
            times.append(ended_s)
        if usage := event.get("usage"):
            num_tokens = usage["completion_tokens"]
    if num_tokens is None:
        raise BenchError("the answer ended without `usage`, which says how many tokens it has")
    return TimedAnswer(started_s, times, ended_s, num_tokens)


def _events(packets: Iterable[Timed]) -> Iterator[tuple[float, dict[str, Any]]]:
    try:
        for time_s, line in _lines(_body(packets)):
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield time_s, json.loads(line[5:])
    except ValueError as error:
        raise BenchError(f"the answer is not a stream of events: {error}") from error


def _body(packets: Iterable[Timed]) -> Iterator[Timed]:
    """What follows the head of a response. Raises BenchError for a status other than 200."""
    packets, head = iter(packets), b""
    for time_s, data in packets:
        head, is_whole, rest = (head + data).partition(b"\r\n\r\n")
        if is_whole:
            pieces = chain([(time_s, rest)], packets)
            break
    else:
        raise BenchError("the connection was closed without an answer")
    status, _, fields = head.partition(b"\r\n")
    if status.split(b" ")[1:2] != [b"200"]:
        text = b"".join([status, b" ", *(data for _, data in pieces)])
        raise BenchError(text[:SHOWN_BYTES].decode(errors="replace"))
    return _dechunked(pieces) if b"transfer-encoding: chunked" in fields.lower() else pieces


def _dechunked(pieces: Iterable[Timed]) -> Iterator[Timed]:
    """The content of each chunk, with the time of the packet that completed it."""
    rest = b""
    for time_s, data in pieces:
        rest += data
        while True:
            size_text, is_whole, after = rest.partition(b"\r\n")
            size = int(size_text.partition(b";")[0], 16) if is_whole else 0
            if not is_whole or len(after) < size + 2:
                break
            yield time_s, after[:size]
            rest = after[size + 2 :]


def _lines(pieces: Iterable[Timed]) -> Iterator[Timed]:
    rest, time_s = b"", 0.0
    for time_s, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        yield from ((time_s, line) for line in lines)
    yield time_s, rest
