"""A scheduler that writes down what it is told and what it decides."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from legato.core.config import SchedulerConfig
from legato.core.plan import ScheduledChunk, StepOutput, StepPlan
from legato.core.request import Request
from legato.kvcache.manager import KVCacheManager
from legato.observability.recording.frames import (
    Aborted,
    AnyFrame,
    Arrived,
    Chunk,
    Planned,
    SavedNode,
    SavedRequest,
    SavedTable,
    Start,
    Updated,
)
from legato.observability.recording.page_names import PageChain, PageNames
from legato.scheduler.events import Broken, Event, NewToken, PromptComputed
from legato.scheduler.policy import BatchingPolicy
from legato.scheduler.scheduler import Rows, Scheduler

LEDGER = (  # what a SavedRequest has of a Request under the same name
    *("prompt_len", "max_device_len", "priority", "row", "cached_len", "device_len"),
    *("hit_len", "scored_len", "num_preemptions", "num_yields", "last_turn", "pages_written"),
)


class Recorder(Protocol):
    """Where frames go; the RecordingWriter of a file."""

    @property
    def is_full(self) -> bool: ...

    def start(self, frame: Start) -> None: ...

    def write(self, frames: Sequence[AnyFrame]) -> None: ...


class RecordedScheduler(Scheduler):
    """Decides like its base class. One write a step, before the step is launched: if that kills the engine,
    its plan is in the recording.

    batching  the policy's name
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: BatchingPolicy,
        kv: KVCacheManager,
        rows: Rows,
        *,
        batching: str,
        recorder: Recorder,
    ) -> None:
        super().__init__(config, policy, kv, rows)
        self._batching = batching
        self._recorder = recorder
        self._page_names = PageNames(kv.config.page_size)
        self._chains: dict[str, PageChain] = {}  # request id -> of its full pages
        self._numbers: dict[str, int] = {}
        self._tenant_numbers = {"": 0}
        self._num_arrived = 0
        self._unwritten: list[AnyFrame] = []
        recorder.start(self._start())

    def add(self, request: Request) -> None:
        super().add(request)
        self._tenant_numbers.setdefault(request.tenant, len(self._tenant_numbers))
        self._numbers[request.request_id] = self._num_arrived
        self._num_arrived += 1
        chain = self._chains[request.request_id] = self._page_names.chain(request.cache_salt)
        self._unwritten.append(Arrived(self._saved_request(request, chain.extend(request.token_ids))))

    def abort(self, request_id: str) -> None:
        if request_id in self:
            self._unwritten.append(Aborted(self._numbers[request_id]))
            super().abort(request_id)
            self._forget(request_id)
            self._flush_if_idle()

    def plan(self) -> StepPlan:
        if self._recorder.is_full:
            self._flush()
            self._recorder.start(self._start())
        were_running = list(self.running)
        plan = super().plan()
        self._unwritten.append(
            Planned(
                [chunk_frame(chunk, self._numbers[chunk.request_id]) for chunk in plan.chunks],
                [self._numbers[each] for each in were_running if each not in self.running],
            )
        )
        self._flush()
        return plan

    def update(self, output: StepOutput) -> list[Event]:
        scored = [
            (self._numbers[request_id], len(logprobs))
            for request_id, logprobs in output.prompt_logprobs.items()
            if request_id in self
        ]
        events = super().update(output)
        self._unwritten.append(self._updated(events, scored))
        for event in events:
            if event.request.finish_reason is not None:
                self._forget(event.request.request_id)
        self._flush_if_idle()
        return events

    def _flush_if_idle(self) -> None:
        if not self.has_requests:  # the next step may be long in coming
            self._flush()

    def _flush(self) -> None:
        self._recorder.write(self._unwritten)
        self._unwritten.clear()

    def _forget(self, request_id: str) -> None:
        del self._numbers[request_id], self._chains[request_id]

    def _updated(self, events: Sequence[Event], scored: list[tuple[int, int]]) -> Updated:
        tokens = [event.request for event in events if isinstance(event, NewToken)]
        return Updated(
            broken=self._numbers_of(event.request for event in events if isinstance(event, Broken)),
            scored=scored,
            completed=self._numbers_of(
                event.request for event in events if isinstance(event, PromptComputed)
            ),
            tokens=self._numbers_of(tokens),
            names=[named for request in tokens for named in self._new_name(request)],
            ended=[
                (self._numbers[event.request.request_id], event.request.finish_reason)
                for event in events
                if event.request.finish_reason is not None
            ],
        )

    def _numbers_of(self, requests: Iterable[Request]) -> list[int]:
        return [self._numbers[request.request_id] for request in requests]

    def _new_name(self, request: Request) -> list[tuple[int, int]]:
        """The request's number and the name of the page that its newest token has filled, if it has."""
        page_size = self.kv.config.page_size
        if len(request.token_ids) % page_size:
            return []
        [name] = self._chains[request.request_id].extend(request.token_ids[-page_size:])
        return [(self._numbers[request.request_id], name)]

    def _start(self) -> Start:
        """The scheduler as it is now."""
        pages = self.kv.save()
        chains: list[PageChain] = []  # of each run, at its end
        nodes: list[SavedNode] = []
        for run in pages.runs:
            chain = chains[run.parent].fork() if run.parent >= 0 else self._page_names.chain(run.salt)
            nodes.append(SavedNode(run.parent, chain.extend(run.token_ids), list(run.pages)))
            chains.append(chain)
        return Start(
            batching=self._batching,
            scheduler=self.config,
            cache=self.kv.config,
            requests=[self._saved_request(request, self._names_of(request)) for request in self.requests],
            nodes=nodes,
            tables=[
                SavedTable(self._numbers[name], table.run, list(table.pages), list(table.duplicates))
                for name, table in pages.tables.items()
            ],
            free_pages=list(pages.free_pages),
            round=self._numbers_of(self.policy.members()),
            service={self._tenant_numbers[name]: service for name, service in self.tenants.service.items()},
        )

    def _names_of(self, request: Request) -> list[int]:
        return self._page_names.chain(request.cache_salt).extend(request.token_ids)

    def _saved_request(self, request: Request, names: list[int]) -> SavedRequest:
        return SavedRequest(
            number=self._numbers[request.request_id],
            known_len=len(request.token_ids),
            is_scored=request.is_scored,
            is_suspect=request.request_id in self._suspects,
            names=names,
            tenant=self._tenant_numbers[request.tenant],
            state=request.state,
            **{name: getattr(request, name) for name in LEDGER},
        )


def chunk_frame(chunk: ScheduledChunk, number: int) -> Chunk:
    return Chunk(
        number,
        chunk.row,
        chunk.start,
        chunk.num_tokens,
        len(chunk.scored),
        chunk.samples,
        chunk.completes,
        chunk.page_start,
        list(chunk.new_pages),
    )
