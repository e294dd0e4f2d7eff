"""The scheduler: plan() a step, note that it was launched, update() with what it sampled."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Protocol

from legato.core.config import SchedulerConfig
from legato.core.plan import StepOutput, StepPlan, TokenLogprobs
from legato.core.request import Request, RequestState
from legato.core.sampling_params import FinishReason
from legato.kvcache.manager import KVCacheManager, SavedPages
from legato.scheduler.admission import Admission
from legato.scheduler.events import Broken, Event, NewToken, PromptComputed
from legato.scheduler.fair_sharing import TenantAccounts
from legato.scheduler.policy import BatchingPolicy
from legato.scheduler.step_draft import StepDraft
from legato.scheduler.waiting_queue import WaitingQueue


class Rows(Protocol):
    """The rows of running requests; the executor's RequestTable."""

    @property
    def available_size(self) -> int: ...

    def allocate(self) -> int: ...

    def free(self, row: int) -> None: ...


class Scheduler:
    """Decides what the next step computes. Knows counts and page ids; no clock, no arrays, no sockets.

    With overlap, plan() for step N+1 runs before update() for step N: lengths are ahead of token values.
    """

    def __init__(
        self, config: SchedulerConfig, policy: BatchingPolicy, kv: KVCacheManager, rows: Rows
    ) -> None:
        self.config = config
        self.policy = policy
        self.kv = kv
        self.tenants = TenantAccounts(config)
        self.waiting = WaitingQueue(self.tenants.service)
        self.running: dict[str, Request] = {}  # those that hold a row
        self.num_preemptions = 0
        self._rows = rows
        self._admission = Admission(config, kv)
        self._requests: dict[str, Request] = {}  # waiting and running
        self._suspects: dict[str, Request] = {}  # of these, those that must be computed alone, for now
        self._arrivals = count()
        self._turns = count()
        self._step = 0

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    @property
    def num_free_rows(self) -> int:
        return self._rows.available_size

    @property
    def requests(self) -> Iterable[Request]:
        """Every request that has not ended, in order of arrival."""
        return self._requests.values()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request: Request) -> None:
        """Queue a request that was checked to fit the context and the pool."""
        request.arrival = next(self._arrivals)
        if not self.config.is_fair:
            request.tenant = ""
        self.tenants.arrive(request.tenant, is_backlogged=bool(self.waiting.of(request.tenant)))
        self._requests[request.request_id] = request
        self.waiting.add(request)
        if request.is_suspect:
            self._suspects[request.request_id] = request

    def restore(
        self,
        requests: Sequence[Request],
        pages: SavedPages,
        members: Sequence[str],
        service: Mapping[str, int],
    ) -> None:
        """Go on where another scheduler is; nothing was done with this one before.

        requests  that one's, in order of arrival; they become this one's; suspects are still to be tried
        pages     kv.save() of that one
        members   the requests that are policy.members()
        service   tenants.service of that one
        """
        rows = sorted(self._rows.allocate() for _ in range(self._rows.available_size))
        for row in set(rows).difference(request.row for request in requests if request.row is not None):
            self._rows.free(row)
        self.kv.restore(pages)
        self.tenants.restore(service, (request.tenant for request in requests))
        for request in requests:
            request.arrival = next(self._arrivals)
            self._requests[request.request_id] = request
            if request.is_suspect:
                self._suspects[request.request_id] = request
            if request.is_admitted:
                self.running[request.request_id] = request
            else:
                self.waiting.add(request)
        self._turns = count(1 + max((request.last_turn for request in requests), default=-1))
        self.policy.restore([self._requests[request_id] for request_id in members])

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for; unknown ids have ended already."""
        if request := self._requests.get(request_id):
            self._end(request, FinishReason.ABORT)

    def plan(self) -> StepPlan:
        """Choose what the next step computes, in the policy's order, within the budgets."""
        draft = StepDraft(self._step, self.config.max_step_tokens, self.config.max_step_scores)
        self._try_suspect(draft)
        if not draft.chunks:
            if self.tenants.is_shared:
                self.tenants.limit_heavy(draft, self.running.values(), self.waiting)
                if draft.light and not draft.has_preempted:
                    self._make_room(draft)
            self.policy.fill(draft, self._add_decodes, self._add_prefills)
        if self.tenants.is_shared:
            for chunk in draft.chunks.values():
                self.tenants.charge(self.running[chunk.request_id].tenant, chunk)
        if draft.chunks:
            self._step += 1
        return draft.finish(
            self._admission.wait_reason(
                draft,
                is_trial=not self._suspects.keys().isdisjoint(draft.chunks),
                num_waiting=len(self.waiting),
                num_free_rows=self.num_free_rows,
                is_round=bool(self.policy.members()),
            )
        )

    def launched(self, plan: StepPlan) -> None:
        """Count a step whose forward is on its way: device progress, before any token value is known."""
        for chunk in plan.chunks:
            request = self.running[chunk.request_id]
            if chunk.samples or chunk.completes:
                self._suspects.pop(chunk.request_id, None)
            if chunk.samples:
                request.complete_one()
            elif chunk.completes:
                request.complete_prompt()
            else:
                request.complete_chunk()

    def update(self, output: StepOutput) -> list[Event]:
        """Record what a step gave; end the requests that it completes, or breaks."""
        events: list[Event] = []  # none of requests that have ended while the step was in flight
        for request_id, error in output.errors.items():
            if request := self._requests.get(request_id):
                self._end(request, FinishReason.ABORT)
                events.append(Broken(request, error))
        for request_id, prompt_logprobs in output.prompt_logprobs.items():
            if request := self._requests.get(request_id):
                request.append_logprobs(prompt_logprobs)
        for request_id in output.completed:
            if request := self._requests.get(request_id):
                self._end(request, FinishReason.LENGTH)
                events.append(PromptComputed(request, request.prompt_logprobs))
        for request_id, token_id in output.token_ids.items():
            if request := self._requests.get(request_id):
                events.append(self._take_token(request, token_id, output.logprobs.get(request_id)))
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError when a row, a page or a request is lost or held twice."""
        self.kv.check_integrity()
        rows = [request.row for request in self.running.values()]
        assert len(set(rows)) == len(rows) == self.config.max_num_seqs - self._rows.available_size, rows
        assert self._requests.keys() == self.running.keys() | {request.request_id for request in self.waiting}
        if not self.running:
            assert self.kv.usage().held == 0, self.kv.usage()

    def _take_token(self, request: Request, token_id: int, logprobs: TokenLogprobs | None) -> NewToken:
        request.append_host(token_id)
        index = request.output_len - 1
        if token_id in request.ending_ids and index + 1 >= request.params.min_tokens:
            self._end(request, FinishReason.STOP)
        elif len(request.token_ids) == request.max_device_len:
            self._end(request, FinishReason.LENGTH)
        if not request.prompt_logprobs:
            return NewToken(request, index, token_id, logprobs)
        scores, request.prompt_logprobs = request.prompt_logprobs, []  # sent once, then kept by nobody
        return NewToken(request, index, token_id, logprobs, scores)

    def _try_suspect(self, draft: StepDraft) -> None:
        """Give the step to a suspect alone, if one is left and has room: all others are soon to go on."""
        suspect = next(iter(self._suspects.values()), None)
        if suspect is None:
            return
        if not suspect.is_admitted:
            if not self._has_room(suspect):
                return
            self._admit(suspect)
        self._add_chunk(suspect, draft)

    # A step, in the order in which continuous batching fills it.

    def _add_decodes(self, draft: StepDraft) -> None:
        decoding = [request for request in self.running.values() if request.can_decode]
        decoding.sort(key=lambda request: (request.last_turn, request.age_key))  # more than fit take turns
        if draft.light:
            prompts_wait = len(decoding) < len(self.running) or bool(self.waiting and self.num_free_rows)
            decoding = draft.within_share(decoding, prompts_wait=prompts_wait)
        chosen = decoding[: draft.tokens_left]
        for request in chosen:
            request.last_turn = next(self._turns)
        chosen.sort(key=draft.order_key)  # so a victim is younger, hence not in the draft
        for request in chosen:
            if request.is_admitted and self._grow_or_preempt(request, draft):
                draft.add(request, self.kv.pages(request.request_id))

    def _add_prefills(self, draft: StepDraft) -> None:
        if draft.chunks or self.tenants.have_names:  # every stream waits for this step, or a tenant may come
            draft.tokens_left = min(draft.tokens_left, self.config.mixed_prefill_tokens)
        draft.fair_share = self.config.long_prefill_tokens or max(1, draft.tokens_left // 2)
        draft.may_complete = self.config.long_prefill_tokens is None
        half_prefilled = self._half_prefilled()
        half_prefilled.sort(key=draft.is_heavy)  # stable: by age where nobody is
        for request in half_prefilled:
            if request.is_admitted and draft.room_for(request) and not self._add_chunk(request, draft):
                return  # no page for an older prompt: nothing for a newer one
        candidates = self.policy.admissible(self.waiting, len(self.running), self._rows.available_size)
        for request in candidates:
            if not draft.room_for(request) or draft.has_preempted or not self._may_admit(request):
                return
            self._admit(request)
            self._add_chunk(request, draft)

    def _may_admit(self, request: Request) -> bool:
        """A suspect's turn comes as soon as it has room."""
        return request.request_id not in self._suspects and self._has_room(request)

    def _has_room(self, request: Request) -> bool:
        """Whether there are a row and pages for the known tokens of a request that waits."""
        return self._rows.available_size > 0 and self._admission.fits(request, self._half_prefilled())

    def _half_prefilled(self) -> list[Request]:
        prefilling = [
            request for request in self.running.values() if request.state is RequestState.PREFILLING
        ]
        return sorted(prefilling, key=lambda request: request.age_key)

    def _add_chunk(self, request: Request, draft: StepDraft) -> bool:
        """Grant the request its next chunk; False when there is no page for it."""
        self._skip_computed(request)
        limit = draft.chunk_limit(request, others_wait=self._others_wait(request, draft))
        if limit == 0:
            return True  # its scores come in a later step; what others need is not scarce
        chunk_len = self._admission.chunk_len(request, limit)
        while chunk_len == 0 and not draft.chunks:  # nobody else moves, so nobody will give a page back
            self._preempt(self._youngest(draft), draft)
            if not request.is_admitted:
                return False
            chunk_len = self._admission.chunk_len(request, limit)
        if chunk_len == 0:
            return False
        grown = self.kv.grow(request.request_id, request.device_len + chunk_len)
        assert grown, "chunk_len promised these pages"
        request.grant_prefill(chunk_len)
        request.last_turn = next(self._turns)  # who comes to decode stands behind those who wait for a turn
        draft.add(request, self.kv.pages(request.request_id))
        # From here on, those that begin alike share these pages, in this very plan: who is in it is no
        # victim, and a step writes the K/V of all its tokens before it reads any. A scored request computes
        # what the cache may have already: not to hold both, it offers its pages only when it gives them back.
        if not request.is_scored:
            self.kv.commit(request.request_id, request.token_ids[: request.device_len])
        return True

    def _others_wait(self, request: Request, draft: StepDraft) -> bool:
        """Whether other prompts want a part; beside a light tenant's, those of heavy ones do not count."""
        if not draft.light or draft.is_heavy(request):
            return len(self._half_prefilled()) > 1 or bool(self.waiting)
        return sum(not draft.is_heavy(other) for other in self._half_prefilled()) > 1

    def _skip_computed(self, request: Request) -> None:
        """Let the request take over what others have computed of its tokens since its last chunk."""
        if request.is_scored:
            return
        num_gained = self.kv.catch_up(request.request_id, request.token_ids, request.cached_len)
        if num_gained == 0:
            return
        num_kept = request.cached_len // self.kv.config.page_size
        request.pages_written = min(request.pages_written, num_kept)
        request.skip_cached(num_gained)
        if request.num_preemptions == 0:
            request.hit_len += num_gained

    def _grow_or_preempt(self, request: Request, draft: StepDraft) -> bool:
        """Get the page for the next token, from the youngest request if need be; False if that is itself."""
        while not self.kv.grow(request.request_id, request.device_len):
            victim = self._youngest(draft)
            self._preempt(victim, draft)
            if victim is request:
                return False
        return True

    def _youngest(self, draft: StepDraft) -> Request:
        """Whom to preempt: the last to be served of those not in the draft; never one with all its pages."""
        return max(
            (
                request
                for request in self.running.values()
                if request.request_id not in draft.chunks and not self._admission.is_reserved(request)
            ),
            key=draft.order_key,
        )

    def _make_room(self, draft: StepDraft) -> None:
        """Admit who waits and is not limited, and let heavy tenants yield rows and pages for it."""
        for request in self.waiting.first(self.config.max_num_seqs):
            if draft.is_heavy(request) or request.request_id in self._suspects:
                return
            while not self._has_room(request):
                victim = self._who_yields(request, draft)
                if victim is None:
                    return
                self._preempt(victim, draft)
                victim.num_yields += 1
            self._admit(request)

    def _who_yields(self, request: Request, draft: StepDraft) -> Request | None:
        """The youngest of a heavy tenant that will still hold no less than the request's, or None."""
        held: Counter[str] = Counter()  # rows or pages of each tenant: what is lacking
        needs_row = self._rows.available_size == 0
        needed = 1 if needs_row else self.kv.pages_for(self._admission.kv_len(request))
        for other in self.running.values():
            held[other.tenant] += 1 if needs_row else len(self.kv.pages(other.request_id))
        least = held[request.tenant] + needed
        candidates = [
            other
            for other in self.running.values()
            if draft.is_heavy(other) and held[other.tenant] > least and self._admission.may_yield(other)
        ]
        return max(candidates, key=draft.order_key, default=None)

    # Taking a row and pages, and giving them back: each in one place.

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running[request.request_id] = request
        row = self._rows.allocate()
        is_resumed = request.num_preemptions > 0 or request.output_len > 0
        hit_len = self.kv.start(
            request.request_id,
            request.token_ids,
            request.cache_salt,
            hit_end=request.hit_end,
            is_resumed=is_resumed,
        )
        request.start(row, hit_len)
        if not is_resumed:
            request.hit_len = hit_len
        if self._admission.is_reserved(request):
            grown = self.kv.grow(request.request_id, self._admission.kv_len(request))
            assert grown, "fits() promised these pages"

    def _give_back(self, request: Request) -> None:
        """Return row and pages; what is computed stays in the prefix cache as long as there is room."""
        assert request.row is not None
        known_len = min(request.cached_len, len(request.token_ids))
        self.kv.commit(request.request_id, request.token_ids[:known_len])
        self.kv.release(request.request_id)
        self._rows.free(request.row)
        del self.running[request.request_id]

    def _preempt(self, request: Request, draft: StepDraft) -> None:
        draft.has_preempted = True
        self.num_preemptions += 1
        self._give_back(request)
        request.preempt()
        self.waiting.add(request)

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.is_admitted:
            self._give_back(request)
        else:
            self.waiting.remove(request)
        del self._requests[request.request_id]
        self._suspects.pop(request.request_id, None)
        request.finish(reason)
        self.tenants.end(request.tenant)
        self.policy.on_end(request)
