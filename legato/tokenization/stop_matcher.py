"""Finds the stop text that ends first, in text that comes piece by piece."""

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """A stop text and where it ends: `end` characters into the piece that completed it."""

    stop: str
    end: int


class _Pattern:
    """One stop text and how much of it the text so far ends with. Source: Knuth, Morris, Pratt 1977."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched_len = 0
        self._borders = [0] * (len(stop) + 1)  # [n]: longest proper suffix of stop[:n] that begins stop
        for n in range(1, len(stop)):
            self._borders[n + 1] = self._next(self._borders[n], stop[n])

    def advance(self, char: str) -> bool:
        """Take in a character; True when the stop text ends with it."""
        self.matched_len = self._next(self.matched_len, char)
        if self.matched_len < len(self.stop):
            return False
        self.matched_len = self._borders[self.matched_len]  # goes on when this end does not count
        return True

    def _next(self, matched_len: int, char: str) -> int:
        while matched_len and self.stop[matched_len] != char:
            matched_len = self._borders[matched_len]
        return matched_len + (self.stop[matched_len] == char)


class StopMatcher:
    """Follows a text for several stop texts at once, in time linear in the text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._patterns = [_Pattern(text) for text in sorted(set(stop), key=len, reverse=True)]

    @property
    def pending_len(self) -> int:
        """Characters at the end of the text that could still become a stop text."""
        return max((pattern.matched_len for pattern in self._patterns), default=0)

    def feed(self, text: str, may_stop: bool = True) -> Match | None:
        """Take in more text: the first match that ends in it, the longest of those that end together."""
        if not self._patterns:
            return None
        for end, char in enumerate(text, start=1):
            done = [pattern.stop for pattern in self._patterns if pattern.advance(char)]
            if done and may_stop:
                return Match(done[0], end)
        return None
