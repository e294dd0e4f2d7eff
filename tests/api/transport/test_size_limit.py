"""Sizes of head and body at, below and above their limits."""

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from legato.api.limits import LIMITS
from legato.api.transport.size_limit import SizeLimit

BODY = LIMITS["body"].maximum


def body_of(num_bytes: int) -> bytes:
    """A valid completion body of exactly so many bytes."""
    empty = json.dumps({"prompt": "a", "user": ""}).encode()
    return empty[:-2] + b"x" * (num_bytes - len(empty)) + empty[-2:]


@pytest.mark.parametrize(("num_bytes", "status"), [(BODY - 1, 200), (BODY, 200), (BODY + 1, 413)])
def test_body_size(client: TestClient, num_bytes: int, status: int) -> None:
    response = client.post("/v1/completions", content=body_of(num_bytes))

    assert response.status_code == status
    if status == 413:
        assert response.json()["error"]["code"] == "body_too_large"


async def call(
    pieces: list[bytes], *, headers: Any = (), body_time_s: float = 15.0
) -> tuple[int, list[bytes]]:
    """Status, and the bodies that the app behind the limit received."""
    received: list[bytes] = []
    statuses: list[int] = []
    unsent = iter(pieces)

    async def receive() -> Message:
        piece = next(unsent, None)
        if piece is None:  # a client that never sends the rest
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": piece != b""}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
    await SizeLimit(app, body_time_s=body_time_s)(scope, receive, send)
    return statuses[0], received


def test_body_in_a_hundred_thousand_pieces_arrives_as_one() -> None:
    status, received = asyncio.run(call([b"x"] * 100_000 + [b""]))
    assert (status, received) == (200, [b"x" * 100_000])


def test_body_without_a_declared_length_is_cut_off_at_the_limit() -> None:
    status, received = asyncio.run(call([b"x" * 2**20] * 9 + [b""]))
    assert (status, received) == (413, [])


@pytest.mark.parametrize("length", [b"8388609", b"9" * 5000])
def test_declared_length_over_the_limit_is_refused_unread(length: bytes) -> None:
    status, received = asyncio.run(call([], headers=[(b"content-length", length)]))
    assert (status, received) == (413, [])


def test_body_that_does_not_come_is_408() -> None:
    status, received = asyncio.run(call([b"{"], body_time_s=0.01))
    assert (status, received) == (408, [])
