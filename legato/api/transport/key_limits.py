"""What the holder of one key may ask for: so many calls at once, and so many a minute."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from legato.api.dialects import LESSON_PATHS, served_path
from legato.api.errors import ErrorAnswer, retry_headers

GENERATING_PATHS = LESSON_PATHS | {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
}
_MEAN_WEIGHT = 0.2  # of a key's latest call, in the mean of how long its calls take
_SHORTEST_S = 1.0  # that who has too many open is told to wait
_OUTLIVED = 0.5  # what has lasted longer than the mean is taken to last so much of its age longer


class KeyLimits:
    """ASGI middleware that answers 429 to what a key asks for beyond its limits; stands after Authentication.

    Calls of the routes that generate count, each as one, whatever it brings; one is over when its answer is,
    or its client has left. Without keys, all clients share one account.

    max_at_once  calls of a key that may be open; 0: no limit
    per_minute   calls of a key in a minute; who has been idle may make so many at once. 0: no limit
    on_refusal   told the code of each refusal
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_at_once: int,
        per_minute: int,
        on_refusal: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._max_at_once = max_at_once
        self._per_minute = per_minute
        self._on_refusal = on_refusal
        self._clock = clock
        self._accounts: dict[str, _Account] = {}  # as many as there are keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or served_path(scope) not in GENERATING_PATHS:
            await self._app(scope, receive, send)
            return
        now = self._clock()
        tenant = scope["state"].get("tenant", "")
        account = self._account(tenant, now)
        refusal = self._refusal(account, now, has_key=bool(tenant))
        if refusal is not None:
            self._on_refusal(str(refusal.code))
            await refusal.response(scope)(scope, receive, send)
            return
        call = account.begin(now)
        try:
            await self._app(scope, receive, send)
        finally:
            account.end(call, self._clock())

    def _account(self, tenant: str, now: float) -> "_Account":
        if tenant not in self._accounts:
            self._accounts[tenant] = _Account(TokenBucket(self._per_minute, now))
        return self._accounts[tenant]

    def _refusal(self, account: "_Account", now: float, *, has_key: bool) -> ErrorAnswer | None:
        if self._max_at_once and account.num_open >= self._max_at_once:
            return _too_many(
                f"{account.num_open} calls {'with this key' if has_key else 'to this server'} are open, and"
                " more may not be at once; send the next when one of them has ended",
                code="too_many_open_calls",
                wait_s=account.next_end_s(now),
            )
        wait_s = account.bucket.wait_s(now) if self._per_minute else 0.0
        if wait_s > 0:
            return _too_many(
                f"{'this key' if has_key else 'all clients of this server together'} may make"
                f" {self._per_minute} calls a minute; the next one in {wait_s:.3g} s",
                code="too_many_calls_a_minute",
                wait_s=wait_s,
            )
        return None


class TokenBucket:
    """Holds `per_minute` tokens at most and gains as many in a minute."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._capacity = float(per_minute)
        self._tokens = self._capacity
        self._filled_at = now

    def wait_s(self, now: float) -> float:
        """Seconds until there is a token to take; 0 when there is."""
        gain = max(0.0, now - self._filled_at) * self._capacity / 60
        self._tokens = min(self._capacity, self._tokens + gain)
        self._filled_at = now
        missing = 1 - self._tokens
        return missing * 60 / self._capacity if missing > 1e-9 else 0.0  # many small gains round

    def take(self) -> None:
        self._tokens -= 1


class _Account:
    """What a key has open and has left, and how long its calls take."""

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self._began_at: dict[object, float] = {}  # of the open calls, the oldest first
        self._mean_s: float | None = None

    @property
    def num_open(self) -> int:
        return len(self._began_at)

    def begin(self, now: float) -> object:
        """Count a call in; what to count it out with."""
        call = object()
        self._began_at[call] = now
        self.bucket.take()
        return call

    def end(self, call: object, now: float) -> None:
        seconds = now - self._began_at.pop(call)
        mean = self._mean_s
        self._mean_s = seconds if mean is None else mean + _MEAN_WEIGHT * (seconds - mean)

    def next_end_s(self, now: float) -> float:
        """Seconds until the oldest open call is likely to end: at the mean of those before it."""
        age_s = now - next(iter(self._began_at.values()))
        left_s = (self._mean_s or 0.0) - age_s
        return max(_SHORTEST_S, left_s if left_s > 0 else _OUTLIVED * age_s)


def _too_many(message: str, *, code: str, wait_s: float) -> ErrorAnswer:
    return ErrorAnswer(
        status=429, message=message, type="rate_limit_exceeded", code=code, headers=retry_headers(wait_s)
    )
