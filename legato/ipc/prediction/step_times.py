"""How long steps take, by their tokens, as the engine has measured it."""

from legato.ipc.messages import EngineStats

_WEIGHT = 0.1  # of the latest step, in the means of its bin


class StepTimes:
    """Means of tokens and seconds, in bins that double: steps of 1 token, of 2-3, of 4-7, …

    A line through all steps would lose its slope where most have the same size; bins forget nothing of the
    sizes that have become rare.
    """

    def __init__(self) -> None:
        self._bins: dict[int, tuple[float, float]] = {}
        self._last = EngineStats()

    def record(self, stats: EngineStats) -> None:
        """Take in the steps since the last call; counters that went back are those of another engine."""
        last, self._last = self._last, stats
        tokens, seconds = float(stats.tokens - last.tokens), stats.busy_s - last.busy_s
        if tokens <= 0 or seconds <= 0:
            return
        key = int(tokens).bit_length()
        if key in self._bins:
            old_tokens, old_seconds = self._bins[key]
            tokens = old_tokens + _WEIGHT * (tokens - old_tokens)
            seconds = old_seconds + _WEIGHT * (seconds - old_seconds)
        self._bins[key] = tokens, seconds

    def curve(self) -> "StepCurve | None":
        """What was measured so far; None before two sizes of step were."""
        points = [self._bins[key] for key in sorted(self._bins)]
        return StepCurve(points) if len(points) > 1 else None


class StepCurve:
    """Seconds of a step over its tokens: straight from point to point, and straight on beyond the last.

    points  tokens, seconds; by tokens, at least two
    """

    def __init__(self, points: list[tuple[float, float]]) -> None:
        self._points = points

    def seconds(self, num_tokens: float) -> float:
        points = self._points
        if num_tokens <= points[0][0]:
            return points[0][1]
        right = next((i for i, point in enumerate(points) if point[0] >= num_tokens), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + max(0.0, y1 - y0) * (num_tokens - x0) / (x1 - x0)
