"""Our engine core: plan, execute, update; with overlap, step N+1 is planned while step N computes."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from legato.core.errors import RequestError
from legato.core.plan import StepOutput, StepPlan
from legato.core.request import Request
from legato.core.request_limits import RequestLimits
from legato.engine.intake import open_request
from legato.engine.timeline import Timeline
from legato.executor.executor import Executor
from legato.ipc.messages import (
    Aborted,
    Accepted,
    AddRequest,
    EngineStats,
    Failed,
    Rejected,
    RequestStats,
    TokenOutput,
)
from legato.scheduler.events import Broken, Event, NewToken
from legato.scheduler.scheduler import Scheduler

HELD_CHECK_S = 0.002  # while nothing else is to be done


class Grammars(Protocol):
    """Builds grammars beside the engine's steps."""

    def prepare(self, grammar: str) -> "Future[None] | None":
        """Done, or None, when a request with this grammar can be computed without anybody's waiting."""
        ...


@dataclass(frozen=True, slots=True)
class CoreParts:
    """What a core is made of; `engine/assembly.py` builds them from a model and a config."""

    scheduler: Scheduler
    executor: Executor
    limits: RequestLimits
    eos_ids: frozenset[int]
    lookahead: int  # steps that may be in flight while the next is planned: 1 with overlap, else 0
    grammars: Grammars | None = None


class Core:
    """Requests in, tokens out, a step at a time."""

    def __init__(self, parts: CoreParts, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limits = parts.limits
        self.eos_ids = parts.eos_ids
        self._scheduler = parts.scheduler
        self._executor = parts.executor
        self._lookahead = parts.lookahead
        self._grammars = parts.grammars
        self._held: dict[str, tuple[Request, Future[None]]] = {}  # by request id, until its grammar is built
        self._in_flight: deque[tuple[StepPlan, Future[StepOutput]]] = deque()
        self._num_steps = 0
        self._num_tokens = 0  # of steps that are over
        self._busy_s = 0.0
        self._busy_since = 0.0  # when the oldest step in flight had the device to itself
        self._clock = clock
        self._timeline = Timeline()

    @property
    def scheduler(self) -> Scheduler:
        """For those who look on: simulation and tests."""
        return self._scheduler

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_requests or bool(self._in_flight) or bool(self._held)

    @property
    def idle_s(self) -> float:
        return 0.0 if self._scheduler.has_requests or self._in_flight else HELD_CHECK_S

    def add(self, message: AddRequest) -> Accepted | Rejected:
        """Queue a request, or say why not."""
        if message.request_id in self._held or self._is_running(message.request_id):
            return _reject(message, "duplicate_request_id", "a request with this id is still running")
        if not message.is_resumed and (excess := self._excess_of_queue(message)):
            return _reject(message, "queue_full", excess)
        try:
            self._queue(open_request(message, self.limits, self.eos_ids))
        except RequestError as error:
            return _reject(message, error.code, str(error), error.param)
        return Accepted(request_id=message.request_id)

    def _queue(self, request: Request) -> None:
        """Hand a request to the scheduler, or hold it until its grammar is built: others need not wait."""
        grammar = request.params.grammar
        built = None if grammar is None or self._grammars is None else self._grammars.prepare(grammar)
        num_before = len(self._scheduler.waiting) + len(self._held)
        self._timeline.accepted(request, num_before, self._clock(), is_held=built is not None)
        if built is None:
            self._scheduler.add(request)
        else:
            self._held[request.request_id] = request, built

    def _release(self) -> None:
        for request, built in list(self._held.values()):
            if built.done():
                del self._held[request.request_id]
                self._timeline.released(request.request_id, self._clock())
                self._scheduler.add(request)

    def _excess_of_queue(self, message: AddRequest) -> str | None:
        """Why the queue has no room for a request; one that can run at once needs none.

        A full queue still takes requests of a tenant that has less than its part of it: the limit divided by
        those who wait. So nobody is locked out, and what was accepted is never shed.
        """
        config, waiting = self._scheduler.config, self._scheduler.waiting
        line = waiting.of(message.tenant if config.is_fair else "")
        held = [request for request, _ in self._held.values()]  # they wait too, in no line yet
        own_held = [each for each in held if each.tenant == message.tenant or not config.is_fair]
        tenants = {message.tenant, *waiting.tenants, *(each.tenant for each in held)}
        num_tenants = len(tenants) if config.is_fair else 1
        num_waiting = len(waiting) + len(held) - self._scheduler.num_free_rows  # for others to end
        num_own = len(line) + len(own_held)
        if num_waiting >= config.max_queued and num_own * num_tenants >= config.max_queued:
            return (
                f"{num_waiting} requests wait already, the limit is {config.max_queued}; send this one again"
                " after the time in Retry-After, or raise --max-num-queued-reqs"
            )
        num_tokens = self._num_waiting_tokens() + len(message.token_ids)
        limit = config.max_queued_tokens
        if limit is None or not num_own or num_waiting < 0 or num_tokens <= limit:
            return None
        num_own_tokens = sum(each.prompt_len for each in chain(line, own_held)) + len(message.token_ids)
        if num_own_tokens * num_tenants <= limit:
            return None
        return (
            f"prompts of {self._num_waiting_tokens()} tokens wait already and this one has"
            f" {len(message.token_ids)}, the limit is {limit}; send this one again after the time in"
            " Retry-After, or raise --max-num-queued-tokens"
        )

    def _num_waiting_tokens(self) -> int:
        held = sum(request.prompt_len for request, _ in self._held.values())
        return self._scheduler.waiting.num_prompt_tokens + held

    def abort(self, request_id: str) -> Aborted:
        """End a request that nobody waits for; unknown ids have ended already."""
        course = None
        if request_id in self._timeline:
            course = self._timeline.so_far(request_id, self._clock())
            self._timeline.ended(request_id)
        self._held.pop(request_id, None)
        self._scheduler.abort(request_id)
        return Aborted(request_id=request_id, course=course)

    def step(self) -> list[TokenOutput | Failed]:
        """Launch the next step and take in the oldest one that has to be waited for."""
        if self._held:
            self._release()
        plan = self._scheduler.plan()
        if plan.chunks:
            now = self._clock()  # before launch(), which may return only when the step is computed
            if not self._in_flight:
                self._busy_since = now
            self._timeline.launched(plan, self._scheduler.running, now)
            self._in_flight.append((plan, self._executor.launch(plan)))
            self._scheduler.launched(plan)
            self._num_steps += 1
        if self._in_flight and (len(self._in_flight) > self._lookahead or not plan.chunks):
            plan, output = self._in_flight.popleft()
            events = self._scheduler.update(output.result())
            now = self._clock()
            self._timeline.stepped(now)
            self._num_tokens += plan.num_tokens
            self._busy_s += now - self._busy_since
            self._busy_since = now
            return [self._message(event, now) for event in events]
        return []

    def stats(self, query_id: str = "") -> EngineStats:
        """Gauges and counters; the ledger of each request only when asked by a query."""
        scheduler = self._scheduler
        usage = scheduler.kv.usage()
        return EngineStats(
            query_id=query_id,
            step=self._num_steps,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._held),
            waiting_tokens=self._num_waiting_tokens(),
            pages_held=usage.held,
            pages_cached=usage.cached,
            pages_free=usage.free,
            prefix_queries=scheduler.kv.prefix_queries,
            prefix_hits=scheduler.kv.prefix_hits,
            preemptions=scheduler.num_preemptions,
            prefilled_tokens=sum(
                request.cached_len - request.hit_len
                for request in scheduler.running.values()
                if request.output_len == 0
            ),
            tokens=self._num_tokens,
            busy_s=self._busy_s,
            rounds=scheduler.policy.num_rounds,
            requests=[self._request_stats(request) for request in scheduler.requests] if query_id else [],
            courses=self._timeline.courses(self._clock()) if query_id else {},
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when pages, rows or requests do not add up."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        self._executor.close()

    def _message(self, event: Event, now: float) -> TokenOutput | Failed:
        request = event.request
        timing, course = self._timeline.token(request.request_id, now)
        if request.finish_reason is not None:
            self._timeline.ended(request.request_id)
        if isinstance(event, Broken):
            return Failed(
                request_id=request.request_id,
                error=event.error.message,
                code=event.error.code,
                course=course,
            )
        token = event if isinstance(event, NewToken) else None  # else none was wanted
        return TokenOutput(
            request_id=request.request_id,
            index=token.index if token else 0,
            token_ids=[token.token_id] if token else [],
            finish_reason=request.finish_reason,
            cached_len=request.hit_len,
            logprobs=[token.logprobs] if token and token.logprobs else [],
            prompt_logprobs=list(event.prompt_logprobs),
            timing=timing,
            course=course,
        )

    def _is_running(self, request_id: str) -> bool:
        """Whether it waits or runs, or a step still computes for it, though it may have ended meanwhile."""
        return request_id in self._scheduler or any(
            chunk.request_id == request_id for plan, _ in self._in_flight for chunk in plan.chunks
        )

    def _request_stats(self, request: Request) -> RequestStats:
        return RequestStats(
            request_id=request.request_id,
            state=request.state,
            row=request.row,
            prompt_len=request.prompt_len,
            cached_len=request.cached_len,
            device_len=request.device_len,
            max_device_len=request.max_device_len,
            extend_len=request.extend_len,
            remain_len=request.remain_len,
            pages=list(self._scheduler.kv.pages(request.request_id)) if request.is_admitted else [],
            num_preemptions=request.num_preemptions,
        )


def _reject(message: AddRequest, code: str, reason: str, param: str | None = None) -> Rejected:
    return Rejected(request_id=message.request_id, code=code, message=reason, param=param)
