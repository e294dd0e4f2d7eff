"""uvicorn's HTTP/1.1, with bounds on what clients may make it do: crumbs, unread answers, connections."""

import asyncio
import logging
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from legato.api.errors import ErrorAnswer, retry_headers
from legato.api.transport.request_scope import PROBED_PATHS
from legato.api.transport.slow_readers import CUT

logger = logging.getLogger(__name__)

MAX_CRUMBS = 4096  # pieces of a body whose mean is below MIN_PIECE_BYTES
MIN_PIECE_BYTES = 64
RETRY_S = 1.0  # for who finds all connections taken
LEAVE_CHECK_S = 1.0  # between two looks whether a client that is not read from is still there
_LEFT = getattr(select, "POLLRDHUP", select.POLLHUP)  # the second sees resets alone


class WholesaleConnection(h11.Connection):
    """Counts the pieces of each body, chunks mostly; uvicorn joins them, so nothing above can count them."""

    _num_pieces = 0
    _body_bytes = 0

    def next_event(self) -> Any:
        """The next event. Raises h11.RemoteProtocolError at a body in crumbs."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            self._body_bytes += len(event.data)
            if self._num_pieces > MAX_CRUMBS and self._body_bytes < MIN_PIECE_BYTES * self._num_pieces:
                raise h11.RemoteProtocolError("the body comes in too many small pieces")
        return event


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may cost.

    max_connections  clients beyond these get 503, so that descriptors are left; only probes are answered
    head_timeout_s   until the head of a request is complete
    send_timeout_s   in which a client must take something of what is left of an answer that is complete
    """

    max_connections: int = sys.maxsize
    head_timeout_s: float = 15.0
    send_timeout_s: float = 60.0


class WholesaleProtocol(H11Protocol):
    """Answers a body in crumbs with 400 and closes the connection, also when the client reads nothing."""

    def __init__(self, *args: Any, limits: ConnectionLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits or ConnectionLimits()
        self._unsent_watch: asyncio.TimerHandle | None = None
        self._head_watch: asyncio.TimerHandle | None = None
        self._leave_watch: asyncio.TimerHandle | None = None
        self.app = partial(_call, self.app, self._cut)
        limit = self.config.h11_max_incomplete_event_size
        self.conn = WholesaleConnection(h11.SERVER, *([] if limit is None else [limit]))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()
        if len(self.connections) > self._limits.max_connections:
            self.app = partial(_refuse, self.app, self._limits.max_connections)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_leave()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_unsent_watch()
        self._watch_unsent(sys.maxsize)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_unsent_watch()
        self._stop_head_watch()
        if self._leave_watch is not None:
            self._leave_watch.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Give a head that has begun, or the first of a connection, its time; others come when they come."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_head_watch()
        elif self._head_watch is None and (self.cycle is None or self.conn.trailing_data[0]):
            self._head_watch = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _stop_head_watch(self) -> None:
        if self._head_watch is not None:
            self._head_watch.cancel()
            self._head_watch = None

    def _watch_leave(self) -> None:
        """While nothing is read, for the next request is here already, only the system hears of an end."""
        if self._leave_watch is None and self.flow.read_paused and not self.transport.is_closing():
            self._leave_watch = self.loop.call_later(LEAVE_CHECK_S, self._check_leave)

    def _check_leave(self) -> None:
        self._leave_watch = None
        if self.flow.read_paused and _has_left(self.transport):
            self.transport.abort()
        self._watch_leave()

    def _watch_unsent(self, num_before: int) -> None:
        """See that the rest of an answer gets shorter: nobody else does, once it is complete."""
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the next answer is under way, and its sender sees to it until it is complete
        num_unsent = self.transport.get_write_buffer_size()
        if num_unsent >= num_before:
            logger.warning(
                "a client has read nothing of an answer for %g s: its connection is closed",
                self._limits.send_timeout_s,
            )
            self.transport.abort()
        elif num_unsent:
            self._unsent_watch = self.loop.call_later(
                self._limits.send_timeout_s, self._watch_unsent, num_unsent
            )

    def _stop_unsent_watch(self) -> None:
        if self._unsent_watch is not None:
            self._unsent_watch.cancel()

    def _cut(self) -> None:
        """Close the connection without what waits to be sent."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer is under way or out: another would be none
            self.transport.close()


def _has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed its end, though what it sent before is not read yet."""
    ends = select.poll()
    ends.register(transport.get_extra_info("socket"), _LEFT)
    return bool(ends.poll(0))


async def _call(app: ASGIApp, cut: Callable[[], None], scope: Scope, receive: Receive, send: Send) -> None:
    """Let the app close the connection."""
    scope["extensions"] = {CUT: cut}
    await app(scope, receive, send)


async def _refuse(app: ASGIApp, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    """One client too many; who asks whether the server lives is not one."""
    if scope["type"] == "http" and not scope["path"].endswith(PROBED_PATHS):
        app = ErrorAnswer(
            status=503,
            message=f"{limit} connections are open, as many as this server may have; try again soon",
            type="overloaded",
            code="too_many_connections",
            headers={**retry_headers(RETRY_S), "connection": "close"},
        ).response(scope)
    await app(scope, receive, send)
