"""Where the time of each request goes in the engine: told with its tokens, and when it ends.

Time is cut at the end of each step: what lies between two ends belongs to the later step. A request that the
step computes gets it as prefill or decode, one that waits by the reason why nobody more was taken in. So a
step costs little for each prompt that it computes, next to nothing for those that decode, and nothing for
those that wait.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from enum import Enum, auto

from legato.core.plan import ScheduledChunk, StepPlan, WaitReason
from legato.core.request import Request
from legato.core.timing import UNEXPLAINED, Course, Part, Stopwatch, Stretch, Timing

MAX_REASONS = 256  # changes of the reason for waiting that are kept


class _Phase(Enum):
    HELD = auto()  # until its grammar is built
    QUEUED = auto()
    PREEMPTED = auto()
    PREFILLING = auto()
    DECODING = auto()


class _Life:
    """One request in this engine.

    num_before    requests that waited when it came
    computed_len  tokens up to the end of its latest chunk
    """

    def __init__(self, accepted_at: float, num_before: int, *, is_resumed: bool) -> None:
        self.watch = Stopwatch(accepted_at)
        self.course = Course(accepted_at)
        self.num_before = num_before
        self.phase = _Phase.QUEUED
        self.num_preemptions = 0
        self.computed_len = 0
        self.prefill = "recompute" if is_resumed else "prefill"


class _Reasons:
    """Why requests waited, from when on."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._reasons: list[WaitReason] = []

    def note(self, start: float, reason: WaitReason) -> None:
        if self._reasons and self._reasons[-1] is reason:
            return
        self._starts.append(start)
        self._reasons.append(reason)
        if len(self._starts) > MAX_REASONS:
            del self._starts[: MAX_REASONS // 2], self._reasons[: MAX_REASONS // 2]

    def between(self, start: float, end: float) -> list[tuple[WaitReason, float]]:
        """The reasons from `start` on, each with its end; none where they were forgotten."""
        first = bisect_right(self._starts, start) - 1
        if first < 0:
            return []
        last = max(first, bisect_right(self._starts, end) - 1)
        ends = [*self._starts[first + 1 : last + 1], end]
        return list(zip(self._reasons[first : last + 1], ends, strict=True))


class Timeline:
    """The lives of an engine's requests, from accepted to ended; each moment is given, by one clock."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._prefilling: dict[str, _Life] = {}
        self._reasons = _Reasons()
        self._in_flight: deque[StepPlan] = deque()
        self._since = 0.0  # when the latest step ended
        self._decoded = Stretch(0.0, 0.0, ())  # what the latest step was to those that decoded in it

    def accepted(self, request: Request, num_before: int, now: float, *, is_held: bool = False) -> None:
        if not self._lives:
            self._since = now  # nobody asks what went on before
        is_resumed = request.output_len > 0
        life = self._lives[request.request_id] = _Life(now, num_before, is_resumed=is_resumed)
        if is_held:
            life.phase = _Phase.HELD

    def released(self, request_id: str, now: float) -> None:
        """It was held, and is queued now."""
        life = self._lives[request_id]
        life.course.add(_wait_part(life, WaitReason.STEP), now)
        life.phase = _Phase.QUEUED

    def launched(self, plan: StepPlan, running: Mapping[str, Request], now: float) -> None:
        self._in_flight.append(plan)
        for chunk in plan.chunks:
            if chunk.row_start is None:
                continue
            life = self._prefilling[chunk.request_id] = self._lives[chunk.request_id]
            life.watch.start(now)
            request = running[chunk.request_id]
            if request.num_preemptions > life.num_preemptions:
                life.num_preemptions = request.num_preemptions
                life.phase, life.prefill, life.computed_len = _Phase.PREEMPTED, "recompute", 0

    def stepped(self, now: float) -> None:
        """The oldest step that was launched has ended; its outputs are in."""
        plan = self._in_flight.popleft()
        since, self._since = self._since, now
        self._reasons.note(since, plan.waits_for)
        shares = _Shares(plan, self._prefilling)
        self._decoded = Stretch(since, now, (shares.decode(now - since),))
        for chunk in shares.prefills:
            life = self._prefilling.get(chunk.request_id)
            if life is None:
                continue  # it has ended meanwhile
            self._wait(life, life.course, since)
            life.course.add(shares.prefill(life, chunk, now), now)
            life.computed_len = chunk.end
            life.phase = _Phase.PREFILLING
            if chunk.samples or chunk.completes:
                life.phase = _Phase.DECODING
                del self._prefilling[chunk.request_id]

    def token(self, request_id: str, now: float) -> tuple[Timing, Stretch]:
        """The latest step gave the request a token, or its end: what is to be told with it."""
        life = self._lives[request_id]
        course, decoded = life.course, self._decoded
        if course.until == decoded.start and not course.parts:  # as nearly always
            course.start = course.until = decoded.end
            return life.watch.token(now), decoded
        if course.until < decoded.end:
            self._wait(life, course, decoded.start)
            course.extend(decoded)
        return life.watch.token(now), course.take()

    def so_far(self, request_id: str, now: float) -> Stretch:
        """What was not told yet of a request that has not ended, up to now: in the midst of a step."""
        life = self._lives[request_id]
        course = life.course.copy()
        self._wait(life, course, self._since)
        plan = self._in_flight[0] if self._in_flight else None
        chunks = plan.chunks if plan else ()
        chunk = next((chunk for chunk in chunks if chunk.request_id == request_id), None)
        if plan is None or chunk is None:
            course.add(_wait_part(life, plan.waits_for if plan else WaitReason.STEP), now)
        else:
            shares = _Shares(plan, self._prefilling)
            is_prefill = request_id in self._prefilling
            course.add(
                shares.prefill(life, chunk, now) if is_prefill else shares.decode(now - self._since), now
            )
        return course.seen()

    def courses(self, now: float) -> dict[str, Stretch]:
        """so_far() of every request."""
        return {request_id: self.so_far(request_id, now) for request_id in self._lives}

    def ended(self, request_id: str) -> None:
        self._prefilling.pop(request_id, None)
        del self._lives[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._lives

    def _wait(self, life: _Life, course: Course, until: float) -> None:
        """Add the steps without the request, up to the one that ended at `until`."""
        if course.until >= until:
            return
        if life.phase not in (_Phase.QUEUED, _Phase.PREFILLING):
            course.add(_wait_part(life, WaitReason.STEP), until)
            return
        for reason, end in self._reasons.between(course.until, until):
            course.add(_wait_part(life, reason), end)
        course.add(Part(UNEXPLAINED, 0.0), until)


class _Shares:
    """What one step is to those that it computes."""

    def __init__(self, plan: StepPlan, prefilling: Mapping[str, _Life]) -> None:
        self.prefills = [
            chunk for chunk in plan.chunks if chunk.num_tokens > 1 or chunk.request_id in prefilling
        ]
        self._num_others = len(plan.chunks) - 1
        self._num_prompt_tokens = sum(chunk.num_tokens for chunk in self.prefills)
        self._num_tokens = self._num_prompt_tokens + len(plan.chunks) - len(self.prefills)

    def decode(self, seconds: float) -> Part:
        return self._part("decode", seconds, num_tokens=1, is_mixed=bool(self.prefills))

    def prefill(self, life: _Life, chunk: ScheduledChunk, now: float) -> Part:
        is_mixed = self._num_prompt_tokens > chunk.num_tokens
        part = self._part(
            life.prefill, now - life.course.until, num_tokens=chunk.num_tokens, is_mixed=is_mixed
        )
        return part._replace(skipped=chunk.start - life.computed_len)

    def _part(self, cause: str, seconds: float, *, num_tokens: int, is_mixed: bool) -> Part:
        return Part(
            cause,
            seconds,
            steps=1,
            tokens=num_tokens,
            others=self._num_others,
            other_tokens=self._num_tokens - num_tokens,
            mixed_steps=int(is_mixed),
            mixed_s=seconds if is_mixed else 0.0,
        )


def _wait_part(life: _Life, reason: WaitReason) -> Part:
    """Why a request was not computed in a step of this reason."""
    match life.phase:
        case _Phase.HELD:
            return Part("wait_grammar", 0.0)
        case _Phase.QUEUED:
            return Part(f"wait_{reason}", 0.0, others=life.num_before)
        case _Phase.PREEMPTED:
            return Part("preempted", 0.0)
        case _Phase.PREFILLING:
            is_of_queue = reason in (WaitReason.STEP, WaitReason.ROW, WaitReason.ROUND)  # it is out of that
            return Part(f"wait_{WaitReason.BUDGET if is_of_queue else reason}", 0.0)
        case _Phase.DECODING:
            return Part("wait_turn", 0.0)
