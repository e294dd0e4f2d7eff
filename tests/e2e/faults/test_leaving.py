"""Clients that leave at any moment: no page is lost, no prefix is spoilt, and a stream beside them stays."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Server, end_server, start_server, wait_until

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
HEALTHY = {"prompt": "healthy", "max_tokens": 300, **GREEDY}
LONG = [97 + i * i % 26 for i in range(400)]  # many chunks of the server's 32 tokens


def text_of(server: Server, **fields: Any) -> str:
    status, answer = server.post("/v1/completions", {**GREEDY, **fields})
    assert status == 200, answer
    text: str = answer["choices"][0]["text"]
    return text


def leave(server: Server, num_bytes: int, **fields: Any) -> None:
    """Ask for a stream, read so many bytes of the answer, and close; with 0, at once."""
    body = json.dumps({**GREEDY, "stream": True, **fields})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n{body}".encode())
        left = num_bytes
        while left > 0 and (data := connection.recv(left)):
            left -= len(data)


@pytest.mark.parametrize("num_leaving", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_clients_that_leave_take_nothing_with_them(
    tmp_path: Path, tiny_model: Path, num_leaving: int
) -> None:
    """Queued ones (two run at a time), in a prefill, in an answer, and about when it ends."""
    server = start_server(
        tmp_path, tiny_model, max_num_seqs=3, max_num_batched_tokens=32, num_pages=80, block_size=16
    )
    calls: list[dict[str, Any]] = [
        {"num_bytes": 0, "prompt": LONG, "max_tokens": 5},
        {"num_bytes": 300, "prompt": LONG[:200], "max_tokens": 200},
        {"num_bytes": 900, "prompt": "short", "max_tokens": 4},
        {"num_bytes": 0, "prompt": "short", "max_tokens": 400},
    ]
    cold = text_of(server, prompt=LONG, max_tokens=12)
    alone = text_of(server, **HEALTHY)
    with ThreadPoolExecutor(6) as pool:
        healthy = [pool.submit(text_of, server, **HEALTHY) for _ in range(2)]
        for number in range(num_leaving):
            pool.submit(leave, server, **calls[number % len(calls)])
        assert [each.result() for each in healthy] == [alone, alone]
    wait_until(lambda: not server.get("/stats")[1]["requests"])
    stats = server.get("/stats")[1]
    assert (stats["running"], stats["waiting"], stats["pages_held"]) == (0, 0, 0)
    assert stats["pages_free"] + stats["pages_cached"] == 80
    assert text_of(server, prompt=LONG, max_tokens=12) == cold
    assert text_of(server, **HEALTHY) == alone
    end_server(server)
