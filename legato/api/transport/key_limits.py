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
_FIRST_MEAN_S = 1.0  # until one has ended


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
        account = self._account(scope["state"].get("tenant", ""), now)
        refusal = self._refusal(account, now)
        if refusal is not None:
            self._on_refusal(str(refusal.code))
            await refusal.response(scope)(scope, receive, send)
            return
        account.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            account.end(self._clock() - now)

    def _account(self, tenant: str, now: float) -> "_Account":
        if tenant not in self._accounts:
            self._accounts[tenant] = _Account(TokenBucket(self._per_minute, now))
        return self._accounts[tenant]

    def _refusal(self, account: "_Account", now: float) -> ErrorAnswer | None:
        if self._max_at_once and account.num_open >= self._max_at_once:
            return _too_many(
                f"{account.num_open} calls with this key are open, and more may not be at once; send the next"
                " when one of them has ended",
                code="too_many_open_calls",
                wait_s=account.mean_s / self._max_at_once,  # what ends next, if they began one after another
            )
        wait_s = account.bucket.wait_s(now) if self._per_minute else 0.0
        if wait_s > 0:
            return _too_many(
                f"this key may make {self._per_minute} calls a minute; the next one in {wait_s:.3g} s",
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
        self.num_open = 0
        self.mean_s = _FIRST_MEAN_S

    def begin(self) -> None:
        self.num_open += 1
        self.bucket.take()

    def end(self, seconds: float) -> None:
        self.num_open -= 1
        self.mean_s += _MEAN_WEIGHT * (seconds - self.mean_s)


def _too_many(message: str, *, code: str, wait_s: float) -> ErrorAnswer:
    return ErrorAnswer(
        status=429, message=message, type="rate_limit_exceeded", code=code, headers=retry_headers(wait_s)
    )
