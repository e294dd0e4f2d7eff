"""Thousands of open streams: each ends with its own text, and the server answers others meanwhile."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from legato.core.descriptors import raise_descriptor_limit
from tests.e2e.conftest import Server, end_server, start_server

PROMPTS = [f"stream number {number}" for number in range(7)]
# Nothing else runs while it does, and it runs for minutes unless its client leaves.
BLOCKER = {"prompt": ["block"] * 32, "n": 16, "max_tokens": 480, "ignore_eos": True, "stream": True}
MAX_STREAM_BYTES = 200_000  # of the API process for a stream that waits


def body_of(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True}


class Stream:
    """One call, from a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, body: dict[str, Any]) -> "Stream":
        """Returns when the head of the answer has come."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        return cls(reader, writer)

    async def text(self) -> str:
        """Read to the end."""
        events = await self._reader.read()
        assert events.count(b"data: [DONE]") == 1
        self.close()
        chunks = re.findall(rb'^data: (\{"id".*)$', events, re.MULTILINE)
        return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)

    def close(self) -> None:
        self._writer.close()


def rss_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


async def texts_of_many(server: Server, num_streams: int) -> tuple[list[str], float]:
    """The texts of so many streams that were all open at once, and the bytes of the server's for each."""
    gate = asyncio.Semaphore(50)  # of connections that are being made: the system's queue is short

    async def open_one(prompt: str) -> Stream:
        async with gate:
            return await Stream.open(server.port, body_of(prompt))

    async def status_of(path: str) -> int:
        return (await asyncio.to_thread(server.get, path))[0]

    num_bytes = rss_bytes(server)
    blocker = await Stream.open(server.port, BLOCKER)
    opening = [asyncio.create_task(open_one(PROMPTS[n % len(PROMPTS)])) for n in range(num_streams)]
    streams = [await each for each in opening]
    # some of the blocker's answers wait, so all who came later do
    assert (await asyncio.to_thread(server.get, "/stats"))[1]["waiting"] > num_streams
    assert [await status_of(path) for path in ("/health", "/ready")] == [200, 200]
    bytes_each = (rss_bytes(server) - num_bytes) / num_streams
    blocker.close()
    reading = [asyncio.create_task(each.text()) for each in streams]
    while not all(each.done() for each in reading):
        assert await status_of("/health") == 200
        await asyncio.wait(reading, timeout=0.5)
    return [each.result() for each in reading], bytes_each


@pytest.mark.parametrize("num_streams", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_each_of_many_streams_ends_with_its_own_text(
    tmp_path: Path, tiny_model: Path, num_streams: int
) -> None:
    raise_descriptor_limit()
    server = start_server(
        tmp_path, tiny_model, app=None, max_num_seqs=2, max_num_queued_reqs=num_streams + 512
    )

    async def main() -> tuple[list[str], float]:
        alone = [await (await Stream.open(server.port, body_of(prompt))).text() for prompt in PROMPTS]
        assert len(set(alone)) == len(PROMPTS)
        texts, bytes_each = await texts_of_many(server, num_streams)
        assert texts == [alone[n % len(PROMPTS)] for n in range(num_streams)]
        return texts, bytes_each

    try:
        _, bytes_each = asyncio.run(main())
    finally:
        end_server(server)
    print(f"{num_streams} streams, {bytes_each:.0f} bytes of the API process each")
    assert bytes_each < MAX_STREAM_BYTES
