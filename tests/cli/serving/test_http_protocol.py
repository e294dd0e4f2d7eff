"""Bodies in crumbs, as a connection sees them, and as a client of a real server does."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread

import h11
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from legato.cli.serving.http_protocol import (
    MAX_CRUMBS,
    ConnectionLimits,
    WholesaleConnection,
    WholesaleProtocol,
)

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunks(count: int, size: int) -> bytes:
    return (b"%x\r\n" % size + b"a" * size + b"\r\n") * count


def body_len(connection: WholesaleConnection, data: bytes) -> int:
    """Bytes of the body of one request, read to its end."""
    connection.receive_data(data)
    length = 0
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        length += len(event.data) if isinstance(event, h11.Data) else 0
    return length


@pytest.mark.parametrize(("count", "size"), [(MAX_CRUMBS, 1), (MAX_CRUMBS + 100, 64), (2 * MAX_CRUMBS, 200)])
def test_pieces_that_are_few_or_large_are_read(count: int, size: int) -> None:
    assert body_len(WholesaleConnection(h11.SERVER), HEAD + chunks(count, size) + END) == count * size


@pytest.mark.parametrize("size", [1, 63])
def test_one_crumb_too_many_is_a_fault_of_the_client(size: int) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="small pieces"):
        body_len(WholesaleConnection(h11.SERVER), HEAD + chunks(MAX_CRUMBS + 1, size) + END)


def test_each_request_of_a_connection_is_counted_for_itself() -> None:
    connection = WholesaleConnection(h11.SERVER)
    for _ in range(3):
        assert body_len(connection, HEAD + chunks(MAX_CRUMBS, 1) + END) == MAX_CRUMBS
        connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()


LARGE_BYTES = {"/large": 16 << 20, "/larger": 32 << 20}  # more than the system keeps for who does not read


async def send_large(num_bytes: int, send: Send, *, is_whole: bool) -> None:
    """An answer in one message, or one whose end is told when most of it has been read."""
    headers = [(b"content-length", b"%d" % num_bytes)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if not is_whole:
        num_bytes -= 1
        await send({"type": "http.response.body", "body": b"0", "more_body": True})
    await send({"type": "http.response.body", "body": bytes(num_bytes), "more_body": not is_whole})
    if not is_whole:
        await send({"type": "http.response.body"})


HAS_LEFT = Event()


async def length_of_body(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that answers with the length of the body; before it is read on /early, and never on /never."""
    is_early, length, has_more = scope["path"] == "/early", 0, True
    if scope["path"] in LARGE_BYTES:
        await send_large(LARGE_BYTES[scope["path"]], send, is_whole=scope["path"] == "/large")
        return
    if scope["path"] == "/never":
        while (await receive())["type"] != "http.disconnect":
            pass
        HAS_LEFT.set()
        return
    if is_early:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})
        return
    while has_more:
        message = await receive()
        length += len(message.get("body", b""))
        has_more = message.get("more_body", False)
    answer = b"%d" % length
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def port() -> Iterator[int]:
    yield from serve()


def serve(limits: ConnectionLimits | None = None) -> Iterator[int]:
    """The port of a server that runs until the iterator ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            length_of_body,
            http=partial(WholesaleProtocol, limits=limits),  # type: ignore[arg-type]
            lifespan="off",
            log_config=None,
            log_level="critical",
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def exchange(port: int, *requests: bytes) -> bytes:
    """All that the server says until it closes the connection; each request is sent after an answer."""

    async def run() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = b""
        try:
            async with asyncio.timeout(20):
                for request in requests:
                    writer.write(request)
                    answer += await reader.read(1000)
                while piece := await reader.read(1000):
                    answer += piece
        except ConnectionResetError:
            pass  # it closed with our bytes unread
        writer.close()
        return answer

    return asyncio.run(run())


def test_server_answers_400_and_closes(port: int) -> None:
    assert exchange(port, HEAD + chunks(MAX_CRUMBS + 1, 1)).startswith(b"HTTP/1.1 400 ")


def test_server_that_has_answered_already_only_closes(port: int) -> None:
    early = HEAD.replace(b"POST /", b"POST /early")
    answer = exchange(port, early, chunks(MAX_CRUMBS + 1, 1))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_body_in_usual_pieces_is_served(port: int) -> None:
    closing = HEAD.replace(b"host: x", b"host: x\r\nconnection: close")
    assert exchange(port, closing + chunks(5000, 100) + END).endswith(b"\r\n\r\n500000")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_client_that_does_not_finish_a_head_is_left(sent: bytes) -> None:
    with contextmanager(serve)(ConnectionLimits(head_timeout_s=0.2)) as port:
        assert exchange(port, sent) == b""


def answer_of(connection: socket.socket) -> bytes:
    """One answer with a body of one byte; its head and its body may come apart."""
    answer = b""
    while b"\r\n\r\n" not in answer[:-1]:
        piece = connection.recv(1000)
        assert piece, answer
        answer += piece
    return answer


def test_client_may_be_silent_between_two_requests() -> None:
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
    with (
        contextmanager(serve)(ConnectionLimits(head_timeout_s=0.2)) as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        connection.sendall(request)
        assert answer_of(connection).startswith(b"HTTP/1.1 200")
        connection.settimeout(0.6)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(None)
        connection.sendall(request)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_unread_rest_of_an_answer_is_not_mistaken_for_that_of_the_last_one() -> None:
    request = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
    with (
        contextmanager(serve)(ConnectionLimits(send_timeout_s=0.5)) as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
        connection.makefile("rb") as answers,
    ):
        for path, pause_s in (("/large", 0.0), ("/larger", 1.0)):
            connection.sendall(request % path.encode())
            time.sleep(pause_s)
            while answers.readline() != b"\r\n":
                pass
            assert len(answers.read(LARGE_BYTES[path])) == LARGE_BYTES[path]


def test_one_client_too_many_gets_503_and_a_probe_is_answered() -> None:
    closing = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n\r\na"
    with contextmanager(serve)(ConnectionLimits(max_connections=1)) as port:
        with socket.create_connection(("127.0.0.1", port)) as first:
            first.sendall(HEAD)
            refused = exchange(port, closing % b"/v1/completions")
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"too_many_connections" in refused
            assert exchange(port, closing % b"/health").startswith(b"HTTP/1.1 200 ")
            first.sendall(END)
            assert first.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert exchange(port, closing % b"/").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("is_reset", [False, True])
def test_client_that_has_sent_more_than_is_read_is_seen_to_leave(is_reset: bool) -> None:
    request = b"POST /never HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
    HAS_LEFT.clear()
    with contextmanager(serve)() as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(3):
                connection.sendall(request)
                time.sleep(0.1)  # or all are one piece, after which more is read
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert HAS_LEFT.wait(20)
