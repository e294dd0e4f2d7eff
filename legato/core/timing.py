"""Where the time of one request goes."""

from collections.abc import Sequence
from typing import NamedTuple

MAX_PARTS = 32  # of a course; beyond, the older half is told cause by cause
UNEXPLAINED = "unexplained"


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


class Part(NamedTuple):
    """Some time of a request, and what it went to.

    cause         docs/decisions/explain.md lists them
    steps         of the engine
    tokens        of this request that they computed
    skipped       of its tokens that need not be computed, since the prefix cache had them
    others        requests beside it in the fullest of the steps; for a wait, those that were before it
    other_tokens  of others that the steps computed
    mixed_steps   of the steps, those with prompts of others
    mixed_s       the seconds of these
    """

    cause: str
    seconds: float
    steps: int = 0
    tokens: int = 0
    skipped: int = 0
    others: int = 0
    other_tokens: int = 0
    mixed_steps: int = 0
    mixed_s: float = 0.0

    def joined(self, other: "Part") -> "Part":
        """Both as one; `self` gives the cause."""
        return Part(
            self.cause,
            self.seconds + other.seconds,
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.skipped + other.skipped,
            max(self.others, other.others),
            self.other_tokens + other.other_tokens,
            self.mixed_steps + other.mixed_steps,
            self.mixed_s + other.mixed_s,
        )


class Stretch(NamedTuple):
    """Parts of a course from one moment to another, on a clock that both processes read.

    The parts' seconds add up to `end - start`.
    """

    start: float
    end: float
    parts: Sequence[Part]


class Course:
    """Parts so far, from `start` to `until`. Neighbours of one cause are one part: a course stays short.

    is_closed  nothing more will come
    """

    def __init__(self, start: float) -> None:
        self.start = self.until = start
        self.is_closed = False
        self.parts: list[Part] = []

    def add(self, part: Part, until: float) -> None:
        """Go on to `until` with a part; its seconds are the time from where the course ends."""
        seconds = max(0.0, until - self.until)
        self.until = max(self.until, until)
        self._append(part._replace(seconds=seconds, mixed_s=min(part.mixed_s, seconds)))

    def extend(self, stretch: Stretch) -> None:
        """Go on with what another course has taken; time that neither knows of is unexplained."""
        if stretch.start == self.until:
            self.until = stretch.end
            for part in stretch.parts:
                self._append(part)
            return
        if stretch.start > self.until:
            self.add(Part(UNEXPLAINED, 0.0), stretch.start)
        known_s = self.until - stretch.start  # two clocks that differ a little, at worst
        for part in stretch.parts:
            seconds = max(0.0, part.seconds - known_s)
            known_s = max(0.0, known_s - part.seconds)
            self._append(part if seconds == part.seconds else part._replace(seconds=seconds))
        self.until = max(self.until, stretch.end)

    def go_on(self, stretch: Stretch) -> None:
        """Extend what an engine tells; before its first word lies the way to it."""
        if self.until == self.start:
            self.add(Part("handover", 0.0), stretch.start)
        self.extend(stretch)

    def take(self) -> Stretch:
        """What has been added since the last time; this course goes on from its end."""
        taken = self.seen()
        self.start, self.parts = self.until, []
        return taken

    def seen(self) -> Stretch:
        return Stretch(self.start, self.until, tuple(self.parts))

    def copy(self) -> "Course":
        copied = Course(self.start)
        copied.until, copied.parts, copied.is_closed = self.until, list(self.parts), self.is_closed
        return copied

    def _append(self, part: Part) -> None:
        if not part.seconds and not part.steps:
            return
        parts = self.parts
        if parts and parts[-1].cause == part.cause:
            parts[-1] = parts[-1].joined(part)
            return
        parts.append(part)
        if len(parts) > MAX_PARTS:
            older: dict[str, Part] = {}
            for each in parts[: MAX_PARTS // 2]:
                older[each.cause] = older[each.cause].joined(each) if each.cause in older else each
            parts[: MAX_PARTS // 2] = older.values()
