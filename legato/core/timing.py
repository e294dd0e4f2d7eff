"""Where the time of one request goes."""

from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds of a request's parts, so far.

    queue_s    accepted to first planned
    prefill_s  from there to the first token
    decode_s   from there to the latest token
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def resumed(self, later: "Timing") -> "Timing":
        """This, of a request that had tokens and began again elsewhere: all of `later` is decoding."""
        return self._replace(decode_s=self.decode_s + sum(later))


class Stopwatch:
    """Of one request; each moment is given in seconds of one monotonic clock."""

    def __init__(self, accepted_at: float) -> None:
        self._accepted_at = accepted_at
        self._started_at: float | None = None
        self._first_token_at: float | None = None

    def start(self, now: float) -> None:
        """Count the request as planned; only the first time counts, not those after preemptions."""
        self._started_at = now if self._started_at is None else self._started_at

    def token(self, now: float) -> Timing:
        """Count a token, and tell what was measured up to it."""
        started_at = now if self._started_at is None else self._started_at
        self._first_token_at = now if self._first_token_at is None else self._first_token_at
        return Timing(
            queue_s=started_at - self._accepted_at,
            prefill_s=self._first_token_at - started_at,
            decode_s=now - self._first_token_at,
        )
