"""How far a batch is: counts, rates and the time that is left, in words."""

import time
from collections.abc import Callable

from legato.cli.batch.lines import KnownLine
from legato.cli.batch.rows import Row


class Tally:
    """Counts lines as they are done.

    total_bytes  of the input; None when it comes through a pipe, and nobody knows
    """

    def __init__(self, total_bytes: int | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.num_answered = 0
        self.num_failed = 0
        self.num_known = 0
        self.num_known_failed = 0
        self._num_tokens = 0
        self._done_bytes = 0
        self._known_bytes = 0
        self._total_bytes = total_bytes
        self._clock = clock
        self._started_at = clock()

    def start(self) -> None:
        """Rates count from here."""
        self._started_at = self._clock()

    def skip(self, line: KnownLine) -> None:
        self.num_known += 1
        self.num_known_failed += line.is_failure
        self._known_bytes += line.num_bytes
        self._done_bytes += line.num_bytes

    def count(self, row: Row, num_bytes: int) -> None:
        if row.is_failure:
            self.num_failed += 1
        else:
            self.num_answered += 1
        self._num_tokens += row.num_tokens
        self._done_bytes += num_bytes

    @property
    def has_failures(self) -> bool:
        return self.num_failed + self.num_known_failed > 0

    @property
    def share(self) -> float | None:
        """Of the input that is done, by its bytes; None when its size is not known."""
        return min(1.0, self._done_bytes / self._total_bytes) if self._total_bytes else None

    def note(self) -> str:
        """Where the batch is."""
        parts = [f"{self.num_known + self._num_done} lines", *self._rates()]
        left_s = self._left_s()
        if left_s is not None:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)

    def summary(self) -> str:
        """What has become of the batch."""
        parts = [f"{self.num_answered} answered"]
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        if self.num_known:
            failed = f", of which {self.num_known_failed} failed" if self.num_known_failed else ""
            parts.append(f"{self.num_known} were there before{failed}")
        parts += [f"{duration(self._elapsed_s)}", *self._rates()]
        return "; ".join(parts)

    @property
    def _num_done(self) -> int:
        return self.num_answered + self.num_failed

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._started_at

    def _rates(self) -> list[str]:
        seconds = self._elapsed_s
        if not self._num_done or seconds <= 0:
            return []
        return [f"{self._num_done / seconds:.3g} requests/s", f"{self._num_tokens / seconds:.0f} tokens/s"]

    def _left_s(self) -> float | None:
        new_bytes = self._done_bytes - self._known_bytes
        if self._total_bytes is None or new_bytes == 0:
            return None
        return self._elapsed_s * max(0, self._total_bytes - self._done_bytes) / new_bytes


def duration(seconds: float) -> str:
    """75.2 -> 1 min 15 s"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
