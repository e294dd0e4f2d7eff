"""How long steps take, by their tokens, as the engine has measured it."""

from dataclasses import dataclass

from legato.ipc.messages import EngineStats

MAX_SWING = 4.0  # a step that took more times longer than was expected tells no more
_SPEED_WEIGHT = 0.1  # of the latest step, in how much slower the machine is than usual
_SHAPE_WEIGHT = 0.03  # and in the means of its bin, which are what is usual


@dataclass(slots=True)
class _Bin:
    """Means over steps of like size."""

    tokens: float = 0.0
    seconds: float = 0.0
    num_steps: int = 0

    def add(self, tokens: float, seconds: float) -> None:
        self.num_steps += 1
        weight = max(_SHAPE_WEIGHT, 1 / self.num_steps)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)


class StepTimes:
    """What steps of each size take beside each other, learned slowly, and the machine's speed, learned fast.

    Sizes have bins that double: steps of 1 token, of 2-3, of 4-7, … A line through all steps would lose its
    slope where most have the same size; bins forget nothing of the sizes that have become rare, and when
    other programs take the cores, all of them become slower alike.
    """

    def __init__(self) -> None:
        self._bins: dict[int, _Bin] = {}
        self._slowness = 1.0
        self._last = EngineStats()

    def record(self, stats: EngineStats) -> None:
        """Take in the steps since the last call; counters that went back are those of another engine."""
        last, self._last = self._last, stats
        tokens, seconds = stats.tokens - last.tokens, stats.busy_s - last.busy_s
        if tokens <= 0 or seconds <= 0:
            return
        if len(self._bins) > 1:
            usual = StepCurve(self._points(1.0)).seconds(tokens)
            ratio = min(max(seconds / usual, 1 / MAX_SWING), MAX_SWING)
            self._slowness += _SPEED_WEIGHT * (ratio - self._slowness)
        self._bins.setdefault(tokens.bit_length(), _Bin()).add(tokens, seconds)

    def curve(self) -> "StepCurve | None":
        """What was measured so far; None before a step was.

        Of a single size, a half is taken to be the step's, and the other half its tokens': that is rather too
        much for a large step than too little, until one was measured.
        """
        if not self._bins:
            return None
        points = self._points(self._slowness)
        first = points[0]
        return StepCurve(points if len(points) > 1 else [(0, first[1] / 2), first])

    def _points(self, slowness: float) -> list[tuple[float, float]]:
        bins = [self._bins[key] for key in sorted(self._bins)]
        return [(each.tokens, each.seconds * slowness) for each in bins]


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
