"""How long a call may take: the server's limits, and the client's own in x-request-timeout."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from legato.core.errors import RequestError

HEADER = "x-request-timeout"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds from now on; None is for ever.

    queue_s  to the first token
    total_s  to the end
    """

    queue_s: float | None = None
    total_s: float | None = None

    @classmethod
    def of(cls, request: Request, *, queue_s: float, total_s: float) -> "Deadlines":
        """The server's limits, 0 for none, and the client's if that is shorter.

        Raises RequestError when the header is not a number above 0.
        """
        limits = [total_s] if total_s else []
        given = request.headers.get(HEADER)
        if given is not None:
            limits.append(_seconds(given))
        return cls(queue_s or None, min(limits, default=None))

    def watch(self, has_tokens: Callable[[], bool], expire: Callable[[], None]) -> Callable[[], None]:
        """Call `expire` when the time is over, unless what this returns is called before."""
        loop = asyncio.get_running_loop()

        def expire_in_queue() -> None:
            if not has_tokens():
                expire()

        timers = [
            loop.call_later(seconds, call)
            for seconds, call in ((self.queue_s, expire_in_queue), (self.total_s, expire))
            if seconds is not None
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
