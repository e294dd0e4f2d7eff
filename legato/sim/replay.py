"""Recorded decisions, made once more by the shipped scheduler and K/V accounts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from legato.core.plan import RowError, StepOutput, TokenLogprobs
from legato.core.request import Request, RequestState
from legato.core.sampling_params import SamplingParams
from legato.executor.request_table import RequestTable
from legato.kvcache.manager import KVCacheManager, SavedPages, SavedRun, SavedTable
from legato.observability.recording.frames import (
    Aborted,
    AnyFrame,
    Arrived,
    Planned,
    SavedRequest,
    Start,
    Updated,
)
from legato.scheduler.policy import make_policy
from legato.scheduler.recorded import LEDGER, chunk_frame
from legato.scheduler.scheduler import Scheduler

_NO_NUMBERS = TokenLogprobs(0.0, (), ())


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that is not the recorded one, and of which step, counted from 1."""

    step: int
    recorded: str
    replayed: str


class Replay:
    """Takes a recording's frames in order. Requests are called by their numbers; tokens are made up so that
    two pages are equal where the recorded ones were."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._scheduler: Scheduler | None = None  # until the first Start
        self._page_size = 1

    def follow(self, frames: Iterable[AnyFrame]) -> Difference | None:
        """The first difference; None when every decision was the same."""
        for frame in frames:
            try:
                found = self._take(frame)
            except Exception as error:  # whatever a scheduler raises that the recorded one did not
                recorded = _told(frame) if isinstance(frame, Planned) else type(frame).__name__.lower()
                return self._difference(recorded, f"{type(error).__name__}: {error}")
            if found is not None:
                return found
        return None

    def _take(self, frame: AnyFrame) -> Difference | None:
        if isinstance(frame, Start):
            self._scheduler = self._restored(frame)
            return None
        scheduler = self._scheduler
        if scheduler is None:
            raise ValueError("the recording does not begin with a Start")
        match frame:
            case Arrived(request=request):
                scheduler.add(self._request(request))
            case Aborted(number=number):
                scheduler.abort(str(number))
            case Planned():
                return self._plan(scheduler, frame)
            case Updated():
                return self._update(scheduler, frame)
        return None

    def _plan(self, scheduler: Scheduler, recorded: Planned) -> Difference | None:
        were_running = list(scheduler.running)
        plan = scheduler.plan()
        self.num_steps += 1
        preempted = [int(each) for each in were_running if each not in scheduler.running]
        replayed = Planned([chunk_frame(each, int(each.request_id)) for each in plan.chunks], preempted)
        if replayed != recorded:
            return self._difference(_told(recorded, replayed), _told(replayed, recorded))
        if plan.chunks:
            scheduler.launched(plan)
        return None

    def _update(self, scheduler: Scheduler, recorded: Updated) -> Difference | None:
        names, stopped = dict(recorded.names), {number for number, why in recorded.ended if why == "stop"}
        token_ids = {str(number): names.get(number, 0) for number in recorded.tokens}
        for request in scheduler.requests if stopped else ():
            if int(request.request_id) in stopped:
                request.ending_ids = frozenset({token_ids[request.request_id]})
        events = scheduler.update(
            StepOutput(
                step=self.num_steps,
                token_ids=token_ids,
                errors={str(number): RowError("", "") for number in recorded.broken},
                prompt_logprobs={str(number): [_NO_NUMBERS] * count for number, count in recorded.scored},
                completed=tuple(map(str, recorded.completed)),
            )
        )
        ended = [
            (int(event.request.request_id), str(event.request.finish_reason))
            for event in events
            if event.request.finish_reason is not None
        ]
        if ended == recorded.ended:
            return None
        return self._difference(f"ended: {recorded.ended}", f"ended: {ended}")

    def _difference(self, recorded: str, replayed: str) -> Difference:
        return Difference(self.num_steps, recorded, replayed)

    def _restored(self, start: Start) -> Scheduler:
        self._page_size = start.cache.page_size
        rows = RequestTable(start.scheduler.max_num_seqs)
        policy = make_policy(start.batching, lambda: 0.0)
        scheduler = Scheduler(start.scheduler, policy, KVCacheManager(start.cache), rows)
        pages = SavedPages(
            start.free_pages,
            [SavedRun(node.parent, self._tokens(node.names), node.pages) for node in start.nodes],
            {
                str(table.number): SavedTable(table.node, table.pages, table.duplicates)
                for table in start.tables
            },
        )
        scheduler.restore(
            list(map(self._request, start.requests)),
            pages,
            list(map(str, start.round)),
            {_tenant(number): service for number, service in start.service.items()},
        )
        scheduler.check_integrity()
        return scheduler

    def _request(self, saved: SavedRequest) -> Request:
        token_ids = self._tokens(saved.names)
        return Request(
            request_id=str(saved.number),
            token_ids=token_ids + [0] * (saved.known_len - len(token_ids)),
            params=SamplingParams(prompt_logprobs=0 if saved.is_scored else None),
            is_suspect=saved.is_suspect,
            tenant=_tenant(saved.tenant),
            state=RequestState(saved.state),
            **{name: getattr(saved, name) for name in LEDGER},
        )

    def _tokens(self, names: Sequence[int]) -> list[int]:
        """Full pages of tokens, each equal to others of the same name alone."""
        rest = [0] * (self._page_size - 1)
        return [token_id for name in names for token_id in (*rest, name)]


def _tenant(number: int) -> str:
    return str(number) if number else ""


def _told(plan: Planned, other: Planned | None = None) -> str:
    """A plan in a line: who has how many tokens, and in full the first chunk that `other` has otherwise."""
    shares = [f"#{chunk.number}: {chunk.num_tokens}" for chunk in plan.chunks]
    told = f"tokens {{{', '.join(shares)}}}, preempted {plan.preempted}"
    pairs = zip(plan.chunks, other.chunks if other else plan.chunks, strict=False)
    first = next((own for own, others in pairs if own != others), None)
    return told if first is None else f"{told}; {first}"
