"""How long a call may take: the server's limits, and the client's own in x-request-timeout."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request

from legato.core.config import ServerConfig
from legato.core.errors import QueueTimeoutError, RequestError

HEADER = "x-request-timeout"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Until when a call may take, by the clock of its event loop; None is for ever."""

    first_token_at: float | None = None
    end_at: float | None = None

    @classmethod
    def of(cls, request: Request) -> "Deadlines":
        """From the request's arrival: the server's limits, and the client's if that is shorter.

        Raises RequestError when the header is not a number above 0.
        """
        server: ServerConfig = request.app.state.server
        queue_s = server.queue_timeout_s
        limits: list[float] = [server.request_timeout_s] if server.request_timeout_s else []
        given = request.headers.get(HEADER)
        if given is not None:
            limits.append(_seconds(given))
        passed_s = time.perf_counter() - request.state.received_at
        arrived_at = asyncio.get_running_loop().time() - passed_s
        return cls(
            first_token_at=arrived_at + queue_s if queue_s else None,
            end_at=arrived_at + min(limits) if limits else None,
        )

    @asynccontextmanager
    async def while_queueing(self) -> AsyncIterator[None]:
        """Cancel the block, in which no token can come, at the first deadline. Raises QueueTimeoutError."""
        moments = [each for each in (self.first_token_at, self.end_at) if each is not None]
        try:
            async with asyncio.timeout_at(min(moments, default=None)):
                yield
        except TimeoutError:
            raise QueueTimeoutError from None

    def watch(self, has_tokens: Callable[[], bool], expire: Callable[[], None]) -> Callable[[], None]:
        """Call `expire` when the time is over, unless what this returns is called before."""
        loop = asyncio.get_running_loop()

        def expire_in_queue() -> None:
            if not has_tokens():
                expire()

        timers = [
            loop.call_at(moment, call)
            for moment, call in ((self.first_token_at, expire_in_queue), (self.end_at, expire))
            if moment is not None
        ]

        def cancel() -> None:
            for timer in timers:
                timer.cancel()

        return cancel


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RequestError(f"{HEADER} must be seconds above 0, not {given[:32]!r}", param=HEADER)
    return seconds
