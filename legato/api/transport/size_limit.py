"""Bounds on a request's head and body, before anything reads them."""

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.api.errors import ErrorAnswer
from legato.api.limits import LIMIT_EXCEEDED, LIMITS


class SizeLimit:
    """ASGI middleware that reads a body whole, within size and time, and passes it on as one message.

    Its cost is linear in the bytes, however many pieces they come in. The state of a request with a body gets
    `body_read_at`, on the clock of `received_at`.
    """

    def __init__(
        self,
        app: ASGIApp,
        body_time_s: float = LIMITS["body_time"].maximum,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._body_time_s = body_time_s
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _fault_of_head(scope)
        if refusal is None and scope["method"] not in ("GET", "HEAD"):
            try:
                async with asyncio.timeout(self._body_time_s):
                    first = await _read_body(receive)
            except TimeoutError:
                refusal = ErrorAnswer(
                    status=408,
                    message=f"the body was not sent within {self._body_time_s:g} s",
                    code="request_timeout",
                )
            else:
                refusal = _too_large() if first is None else _fault_of_values(first)
                receive = _replay(first, receive) if first else receive
                scope.setdefault("state", {})["body_read_at"] = self._clock()
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response(scope)(scope, receive, send)


def _fault_of_head(scope: Scope) -> ErrorAnswer | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    header_bytes = sum(len(name) + len(value) for name, value in headers)
    for name, count in (("header_lines", len(headers)), ("header", header_bytes)):
        limit = LIMITS[name]
        if count > limit.maximum:
            return ErrorAnswer(
                status=431,
                message=f"{count} {limit.unit}; at most {limit.maximum} are served",
                code="header_too_large",
            )
    declared = dict(headers).get(b"content-length", b"0")
    return _too_large() if declared.isdigit() and int(declared[:20]) > LIMITS["body"].maximum else None


def _fault_of_values(body: Message) -> ErrorAnswer | None:
    """Values cost far more than as many bytes of text. No JSON has more than what is counted here."""
    text: bytes = body.get("body", b"")
    count = sum(text.count(mark) for mark in (b"[", b"{", b","))
    limit = LIMITS["json_values"]
    if count <= limit.maximum:
        return None
    return ErrorAnswer(status=400, message=limit.excess(count), code=LIMIT_EXCEEDED)


async def _read_body(receive: Receive) -> Message | None:
    """The body as one message, or the news that the client left; None when it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        if len(body) > LIMITS["body"].maximum:
            return None
        if not message.get("more_body", False):
            return {"type": "http.request", "body": bytes(body), "more_body": False}


def _replay(first: Message, receive: Receive) -> Receive:
    """`receive`, with `first` before all else."""
    unread = [first]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay


def _too_large() -> ErrorAnswer:
    return ErrorAnswer(
        status=413,
        message=f"the body is larger than the {LIMITS['body'].maximum} bytes that are served",
        code="body_too_large",
    )
