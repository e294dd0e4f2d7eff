"""Clients that stop reading: what they hold comes free, their connections end, and nobody else notices."""

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Server, end_server, start_server, wait_until

LARGE = {  # some megabytes, which the buffers on the way do not hold
    "prompt": "a",
    "n": 8,
    "max_tokens": 400,
    "logprobs": 20,
    "temperature": 0,
    "ignore_eos": True,
}
NUM_KEPT_BYTES = 600_000  # of a connection, all buffers together; LARGE gives more than 2 MB
HEALTHY = {"prompt": "healthy", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
PATIENT = {"prompt": "patient", "max_tokens": 200, "logprobs": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """`legato serve`: with another server the system's own buffers are as large as the machine allows."""
    server = start_server(tmp_path_factory.mktemp("server"), tiny_model, app=None, send_timeout_s=2)
    yield server
    end_server(server)


def open_call(server: Server, body: dict[str, Any]) -> socket.socket:
    """A connection with a small buffer of its own that has sent a request and read the head of its answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    assert connection.recv(16).startswith(b"HTTP/1.1 200")
    return connection


def streamed(server: Server, body: dict[str, Any]) -> str:
    data, headers = json.dumps(body | {"stream": True}).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(server.url + "/v1/completions", data, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return text_of(response.read())


def text_of(events: bytes) -> str:
    lines = re.findall(rb'^data: (\{"id".*)$', events, re.MULTILINE)
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as response:
        [value] = re.findall(rf"^{name}\{{.*}} (.*)$", response.read().decode(), re.MULTILINE)
    return float(value)


def rss_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


def read_to_the_end(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection or cuts it."""
    received = b""
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_stream_that_is_not_read_is_aborted_and_the_others_go_on(serving: Server) -> None:
    undisturbed = streamed(serving, HEALTHY)
    num_cut, num_bytes = metric(serving, "legato_slow_readers_total"), rss_bytes(serving)
    stalled = [open_call(serving, LARGE | {"stream": True, "seed": number}) for number in range(3)]
    while metric(serving, "legato_slow_readers_total") < num_cut + len(stalled):
        assert streamed(serving, HEALTHY) == undisturbed
    wait_until(lambda: serving.get("/stats")[1]["running"] == 0)
    assert rss_bytes(serving) < num_bytes + 64 * 2**20
    assert "its client has read nothing for 2 s" in serving.log.read_text()
    assert "without completing response" not in serving.log.read_text()
    for connection in stalled:
        with connection:
            assert len(read_to_the_end(connection)) < NUM_KEPT_BYTES


@pytest.mark.slow
def test_plain_answer_that_is_not_read_is_let_go(serving: Server) -> None:
    with open_call(serving, LARGE) as connection:
        wait_until(lambda: "has read nothing of an answer for 2 s" in serving.log.read_text())
        assert len(read_to_the_end(connection)) < NUM_KEPT_BYTES


def test_client_that_reads_slowly_gets_every_token(serving: Server) -> None:
    undisturbed = streamed(serving, PATIENT)
    received = b""
    with open_call(serving, PATIENT | {"stream": True}) as connection:
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += connection.recv(512)
    assert text_of(received) == undisturbed
