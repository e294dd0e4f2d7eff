"""Ends a request whose client takes nothing of its answer for too long, so that it holds nobody up."""

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

# ASGI extension of a server that can close a connection without sending first what waits: the value does so.
CUT = "legato.cut"


class SlowReaders:
    """ASGI middleware that cancels a request when one message of its answer waits for `limit_s` seconds.

    A server keeps some tens of kilobytes for a connection; then send() waits until the client has read most
    of them. Who reads that much in `limit_s` seconds is served to the end, however long that takes.

    on_cut  called for each request that is ended so
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limit_s: float,
        on_cut: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._clock = clock
        self._limit_s = limit_s
        self._on_cut = on_cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        watch = _SendWatch(self._limit_s, self._clock)

        async def send_watched(message: Message) -> None:
            watch.begin()
            try:
                await send(message)
            finally:
                watch.end()

        try:
            async with watch.timeout:
                await self._app(scope, receive, send_watched)
        except TimeoutError:
            if not watch.timeout.expired():
                raise
            await self._cut(scope)
        finally:
            watch.close()

    async def _cut(self, scope: Scope) -> None:
        request_id = scope["state"]["request_id"]
        logger.warning(
            "request %s is aborted: its client has read nothing for %g s",
            *(request_id, self._limit_s),
            extra={"request_id": request_id},
        )
        self._on_cut()
        if CUT in scope.get("extensions", {}):
            scope["extensions"][CUT]()
            await asyncio.sleep(0)  # it notes the end before it sees that the answer has none


class _SendWatch:
    """Lets `timeout` expire once a message is under way for too long.

    One timer looks after all messages, so that each of them costs no more than a look at the clock.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self.timeout = asyncio.timeout(None)
        self._limit_s = limit_s
        self._clock = clock
        self._sending_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._sending_since = self._clock()
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit_s, self._check)

    def end(self) -> None:
        self._sending_since = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        waited_s = 0.0 if self._sending_since is None else self._clock() - self._sending_since
        if waited_s >= self._limit_s:
            self.timeout.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(self._limit_s - waited_s, self._check)
