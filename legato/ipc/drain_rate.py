"""How fast requests end, so that who is turned away hears when to come back."""

import time
from collections import deque
from collections.abc import Callable

WINDOW = 64  # ends that are looked back on
SHORTEST_S, LONGEST_S = 0.1, 60.0
UNKNOWN_S = 1.0  # before two requests have ended


class DrainRate:
    """The rate of the last ends, which is what a full queue drains at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=WINDOW)

    def count_end(self) -> None:
        self._ends.append(self._clock())

    def wait_s(self, num_requests: int) -> float:
        """Seconds in which so many more requests will have ended."""
        if len(self._ends) < 2:
            return UNKNOWN_S
        elapsed_s = self._clock() - self._ends[0]  # to now: a rate that has dried up falls
        return min(max(num_requests * elapsed_s / len(self._ends), SHORTEST_S), LONGEST_S)
