"""Predicts when a request that came now would have its first token, from all that is known of the others."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from legato.core.config import EngineConfig, SchedulerConfig
from legato.ipc.messages import AddRequest, EngineStats, Ready, TokenOutput
from legato.ipc.prediction.look_ahead import LookAhead, Prompt
from legato.ipc.prediction.output_lens import Bounds, OutputLens
from legato.ipc.prediction.recent_prompts import RecentPrompts
from legato.ipc.prediction.step_times import StepCurve, StepTimes

MAX_WAITING = 64  # that are looked at one by one; more are taken to be like these
SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.1, 60.0  # what is sooner is looked at, and what is later is not


class FirstToken(NamedTuple):
    """A prediction, in seconds.

    wait_s   from now to the first token
    alone_s  the same, were there no other request
    retry_s  from now to when a prompt that came then would not wait too long
    """

    wait_s: float
    alone_s: float
    retry_s: float = 0.0


@dataclass(slots=True)
class _Pending:
    """A request that has not ended: what was left to compute as it came, and the tokens that it has made."""

    request: AddRequest
    left_len: int
    bounds: Bounds
    num_made: int = 0


class FirstTokenPredictor:
    """Keeps an account of who waits and who decodes, told of all that its owner hears. Not thread-safe.

    Left out: priorities, pages that run out, and all that makes an answer shorter but its own bounds and the
    lengths of the answers before it. Of fair sharing it knows that another tenant goes first with as much as
    one's own asks for at most, and leaves a part of the rows.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self._config = config or EngineConfig()
        self._ready: Ready | None = None
        self._recent = RecentPrompts(capacity_len=0)
        self._times = StepTimes()
        self._stats = EngineStats()
        self._waiting: dict[str, _Pending] = {}  # in order of arrival
        self._waiting_len: Counter[str] = Counter()  # tokens that these have to compute, by tenant
        self._decoding: dict[str, _Pending] = {}
        self._output_lens = OutputLens()

    def begin(self, ready: Ready) -> None:
        """An engine waits for work: it has computed nothing yet, and what others began it does again."""
        self._ready = ready
        self._stats = EngineStats()
        if self._config.enable_prefix_caching:
            self._recent = RecentPrompts(ready.num_pages * ready.page_size)
        unended = (*self._decoding.values(), *self._waiting.values())
        self._decoding.clear()
        self._waiting.clear()
        self._waiting_len.clear()
        for each in unended:
            self._wait(each.request, each.num_made)

    def add(self, requests: Iterable[AddRequest]) -> None:
        for request in requests:
            self._wait(request)

    def take_token(self, message: TokenOutput) -> None:
        pending = self._take_waiting(message.request_id)
        if pending is None:
            pending = self._decoding.get(message.request_id)
        else:
            self._decoding[message.request_id] = pending
        if pending is None:
            return
        pending.num_made = message.index + len(message.token_ids)
        if message.finish_reason is not None:
            self._output_lens.learn(pending.num_made, pending.bounds)
            del self._decoding[message.request_id]

    def forget(self, request_id: str) -> None:
        """The request has ended without a last token: aborted, by its stop text perhaps, or failed."""
        self._take_waiting(request_id)
        decoding = self._decoding.pop(request_id, None)
        if decoding is not None:
            self._output_lens.learn(decoding.num_made, decoding.bounds)

    def take_stats(self, stats: EngineStats) -> None:
        self._stats = stats
        self._times.record(stats)

    def predict(
        self, token_ids: Sequence[int], cache_salt: str = "", tenant: str = "", limit_s: float = math.inf
    ) -> FirstToken | None:
        """Of a prompt that came now; None before the engine has computed anything, and in static rounds.

        limit_s  what is too long a wait; one that the prompt would have alone never is
        """
        curve = self._times.curve()
        if self._ready is None or curve is None or self._config.batching == "static":
            return None
        own_len = max(1, len(token_ids) - self._recent.known_len(token_ids, cache_salt))
        alone_s = self._look_ahead(curve, (), ()).first_token_s(own_len)
        wait_s = self._wait_s(curve, own_len, tenant)
        limit_s, retry_s = max(limit_s, alone_s), 0.0
        if wait_s > limit_s:
            retry_s = max(wait_s - limit_s, SHORTEST_RETRY_S)  # at the soonest: shared work takes longer
            while retry_s < LONGEST_RETRY_S and self._wait_s(curve, own_len, tenant, retry_s) > limit_s:
                retry_s *= 2
        return FirstToken(wait_s, alone_s, retry_s)

    def _wait_s(self, curve: StepCurve, own_len: int, tenant: str, after_s: float = 0.0) -> float:
        """Seconds from then on, if the prompt came in `after_s` seconds and no other one before."""
        others = {*self._waiting_len, *(each.request.tenant for each in self._decoding.values())} - {tenant}
        scheduler = self._scheduler
        if others and scheduler.is_fair:
            prompts = self._fair_prompts_ahead(tenant, own_len)
            num_rows = scheduler.max_num_seqs - scheduler.max_num_seqs // (1 + len(others))
            look_ahead = self._look_ahead(curve, prompts, self._steps_left(tenant, num_rows))
            return look_ahead.first_token_s(own_len, after_s)
        hidden = max(1.0, len(self._waiting) / MAX_WAITING)
        prompts = (prompt for _, prompt in self._prompts_ahead())
        look_ahead = self._look_ahead(curve, prompts, self._steps_left())
        return hidden * look_ahead.first_token_s(own_len, after_s / hidden)

    def _look_ahead(self, curve: StepCurve, prompts: Iterable[Prompt], ends: Iterable[int]) -> LookAhead:
        is_prefill_first = self._config.batching == "prefill-first"
        return LookAhead(curve, self._scheduler, prompts, ends, prefill_first=is_prefill_first)

    @property
    def _scheduler(self) -> SchedulerConfig:
        assert self._ready is not None
        return self._ready.scheduler

    def _prompts_ahead(self) -> Iterator[tuple[str, Prompt]]:
        """Tenants and prompts that wait, less what is computed of them, which is mostly of the oldest."""
        num_computed = self._stats.prefilled_tokens
        for each in islice(self._waiting.values(), MAX_WAITING):
            num_done = min(num_computed, each.left_len - 1)
            num_computed -= num_done
            output_len = self._output_lens.left_len(each.bounds, each.num_made)
            yield each.request.tenant, Prompt(each.left_len - num_done, output_len)

    def _fair_prompts_ahead(self, tenant: str, own_len: int) -> Iterator[Prompt]:
        """All of the tenant's own, and of each other's no more than that with the new one."""
        most = self._waiting_len[tenant] + own_len
        taken: Counter[str] = Counter()
        for other, prompt in self._prompts_ahead():
            if other == tenant or taken[other] < most:
                taken[other] += prompt.left_len
                yield prompt

    def _steps_left(self, tenant: str = "", num_rows: int = sys.maxsize) -> Iterator[int]:
        """Of each that decodes.

        num_rows  that others than the tenant may keep
        """
        for each in self._decoding.values():
            num_rows -= each.request.tenant != tenant
            if each.request.tenant == tenant or num_rows >= 0:
                yield self._output_lens.left_len(each.bounds, each.num_made)

    def _wait(self, request: AddRequest, num_made: int = 0) -> None:
        """Line up a request that has so many tokens, which are computed like its prompt."""
        prompt_len = len(request.token_ids)
        hit_len = 0
        if request.params.prompt_logprobs is None:
            hit_len = self._recent.known_len(request.token_ids, request.cache_salt)
        self._recent.add(request.token_ids, request.cache_salt)
        room = _context_len(self._ready) - prompt_len if self._ready else prompt_len
        left_len = max(1, prompt_len + num_made - hit_len)
        bounds = Bounds.of(request.params, room)
        self._waiting[request.request_id] = _Pending(request, left_len, bounds, num_made)
        self._waiting_len[request.tenant] += left_len

    def _take_waiting(self, request_id: str) -> _Pending | None:
        pending = self._waiting.pop(request_id, None)
        if pending is not None:
            tenant = pending.request.tenant
            self._waiting_len[tenant] -= pending.left_len
            if not self._waiting_len[tenant]:
                del self._waiting_len[tenant]
        return pending


def _context_len(ready: Ready) -> int:
    return min(ready.max_model_len, ready.num_pages * ready.page_size + 1)  # the last token needs no K/V
