"""Servers that answer /v1/completions as they are told to, on an event loop in a thread of their own."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any


class FakeOpenAI:
    """Sends a token an event, as many as are asked for, in chunks that events do not keep to.

    log          shared by several servers: the name of each in the order of their requests
    num_missing  tokens by which each answer is too short
    status       of every completion
    """

    def __init__(self, name: str, log: list[str], *, num_missing: int = 0, status: str = "200 OK") -> None:
        self.name = name
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self._log = log
        self._num_missing = num_missing
        self._status = status

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET /v1/models "):
            self._send(writer, "200 OK", [json.dumps({"data": [{"id": f"{self.name}-model"}]}).encode()])
        else:
            length = next(
                int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length")
            )
            body = json.loads(await reader.readexactly(length))
            self._log.append(self.name)
            self.bodies.append(body)
            events = self._events(body["max_tokens"] - self._num_missing)
            self._send(writer, self._status, [events[i : i + 50] for i in range(0, len(events), 50)])
        await writer.drain()
        writer.close()

    def _events(self, num_tokens: int) -> bytes:
        events: list[Any] = [{"choices": [{"text": "a", "finish_reason": None}]}] * num_tokens
        events.append({"choices": [{"text": "", "finish_reason": "length"}]})
        events.append({"choices": [], "usage": {"completion_tokens": num_tokens}})
        return b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in events) + b"data: [DONE]\n\n"

    @staticmethod
    def _send(writer: asyncio.StreamWriter, status: str, parts: list[bytes]) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        writer.writelines(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


@contextmanager
def serving(*servers: FakeOpenAI) -> Iterator[None]:
    """They answer at their `url` while the block runs."""
    is_listening, is_over = threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(_serve(servers, is_listening, is_over),))
    thread.start()
    try:
        assert is_listening.wait(10)
        yield
    finally:
        is_over.set()
        thread.join()


async def _serve(
    servers: tuple[FakeOpenAI, ...], is_listening: threading.Event, is_over: threading.Event
) -> None:
    async with AsyncExitStack() as stack:
        for server in servers:
            listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
            await stack.enter_async_context(listener)
            server.url = "http://{}:{}".format(*listener.sockets[0].getsockname())
        is_listening.set()
        await asyncio.to_thread(is_over.wait)
