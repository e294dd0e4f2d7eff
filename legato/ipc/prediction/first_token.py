"""Predicts when a request that came now would have its first token, from all that is known of the others."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from legato.core.config import EngineConfig
from legato.ipc.messages import AddRequest, EngineStats, Ready, TokenOutput
from legato.ipc.prediction.look_ahead import LookAhead, Prompt
from legato.ipc.prediction.recent_prompts import RecentPrompts
from legato.ipc.prediction.step_times import StepTimes

MAX_WAITING = 64  # that are looked at one by one; more are taken to be like these
_WEIGHT = 0.1  # of the latest answer, in the mean length of answers


class FirstToken(NamedTuple):
    """A prediction, in seconds.

    wait_s   from now to the first token
    alone_s  the same, were there no other request
    """

    wait_s: float
    alone_s: float


@dataclass(slots=True)
class _Waiting:
    """A request without a token, and how many it may make."""

    prompt: Prompt
    limit: int
    tenant: str


@dataclass(slots=True)
class _Decoding:
    """A request that has a token; steps are counted as the engine counts them."""

    first_step: int
    likely_end: int
    last_end: int
    tenant: str


class FirstTokenPredictor:
    """Keeps an account of who waits and who decodes, told of all that its owner hears. Not thread-safe.

    Left out: priorities, pages that run out, and all that makes an answer shorter but the mean of the
    answers before it. Of fair sharing it knows that another tenant goes first with as much as one's own
    asks for at most, and leaves a part of the rows.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self._config = config or EngineConfig()
        self._ready: Ready | None = None
        self._recent = RecentPrompts(capacity_len=0)
        self._times = StepTimes()
        self._stats = EngineStats()
        self._waiting: dict[str, _Waiting] = {}  # in order of arrival
        self._waiting_len: Counter[str] = Counter()  # tokens that these have to compute, by tenant
        self._decoding: dict[str, _Decoding] = {}
        self._mean_output_len: float | None = None

    def begin(self, ready: Ready) -> None:
        """An engine waits for work: it has computed nothing yet."""
        self._ready = ready
        self._stats = EngineStats()
        self._decoding.clear()
        if self._config.enable_prefix_caching:
            self._recent = RecentPrompts(ready.num_pages * ready.page_size)

    def add(self, requests: Iterable[AddRequest]) -> None:
        for request in requests:
            params, prompt_len = request.params, len(request.token_ids)
            hit_len = 0 if params.prompt_logprobs is not None else self._hit_len(request)
            self._recent.add(request.token_ids, request.cache_salt)
            room = self._ready.max_model_len - prompt_len if self._ready else prompt_len
            limit = room if params.max_tokens is None else params.max_tokens
            prompt = Prompt(max(1, prompt_len - hit_len), self._likely_len(limit))
            self._waiting[request.request_id] = _Waiting(prompt, limit, request.tenant)
            self._waiting_len[request.tenant] += prompt.left_len

    def take_token(self, message: TokenOutput) -> None:
        found = self._take_waiting(message.request_id)
        if found is not None:
            now = self._stats.step
            likely_end = now + found.prompt.output_len
            self._decoding[message.request_id] = _Decoding(now, likely_end, now + found.limit, found.tenant)
        if message.finish_reason is not None:
            self._learn_len(message.index + len(message.token_ids))
            self._decoding.pop(message.request_id, None)

    def forget(self, request_id: str) -> None:
        """The request has ended without a last token: aborted, by its stop text perhaps, or failed."""
        self._take_waiting(request_id)
        decoding = self._decoding.pop(request_id, None)
        if decoding is not None:
            self._learn_len(max(1, self._stats.step - decoding.first_step))

    def take_stats(self, stats: EngineStats) -> None:
        self._stats = stats
        self._times.record(stats)

    def predict(self, token_ids: Sequence[int], cache_salt: str = "", tenant: str = "") -> FirstToken | None:
        """Of a prompt that came now; None before the engine has computed enough to know its speed."""
        curve = self._times.curve()
        if self._ready is None or curve is None or self._config.batching == "static":
            return None
        scheduler = self._ready.scheduler
        look_ahead = partial(
            LookAhead, curve, scheduler, prefill_first=self._config.batching == "prefill-first"
        )
        own_len = max(1, len(token_ids) - self._recent.known_len(token_ids, cache_salt))
        alone_s = look_ahead((), ()).first_token_s(own_len)
        others = {*self._waiting_len, *(each.tenant for each in self._decoding.values())} - {tenant}
        if others and scheduler.is_fair:
            prompts = self._fair_prompts_ahead(tenant, own_len)
            num_rows = scheduler.max_num_seqs - scheduler.max_num_seqs // (1 + len(others))
            wait_s = look_ahead(prompts, self._steps_left(tenant, num_rows)).first_token_s(own_len)
        else:
            hidden = max(1.0, len(self._waiting) / MAX_WAITING)
            prompts = (prompt for _, prompt in self._prompts_ahead())
            wait_s = hidden * look_ahead(prompts, self._steps_left()).first_token_s(own_len)
        return FirstToken(wait_s, alone_s)

    def _prompts_ahead(self) -> Iterator[tuple[str, Prompt]]:
        """Tenants and prompts that wait, less what is computed of them, which is mostly of the oldest."""
        num_computed = self._stats.prefilled_tokens
        for waiting in islice(self._waiting.values(), MAX_WAITING):
            left_len = waiting.prompt.left_len
            num_done = min(num_computed, left_len - 1)
            num_computed -= num_done
            yield waiting.tenant, Prompt(left_len - num_done, waiting.prompt.output_len)

    def _fair_prompts_ahead(self, tenant: str, own_len: int) -> Iterator[Prompt]:
        """All of the tenant's own, and of each other's no more than that with the new one."""
        most = self._waiting_len[tenant] + own_len
        taken: Counter[str] = Counter()
        for other, prompt in self._prompts_ahead():
            if other == tenant or taken[other] < most:
                taken[other] += prompt.left_len
                yield prompt

    def _steps_left(self, tenant: str = "", num_rows: int = sys.maxsize) -> Iterator[int]:
        """Of each that decodes; one that has outlived its likely end is taken to begin again.

        num_rows  that others than the tenant may keep
        """
        now = self._stats.step
        for each in self._decoding.values():
            num_rows -= each.tenant != tenant
            if each.tenant == tenant or num_rows >= 0:
                likely = each.likely_end - now
                yield max(1, likely if likely > 0 else self._likely_len(each.last_end - now))

    def _take_waiting(self, request_id: str) -> _Waiting | None:
        found = self._waiting.pop(request_id, None)
        if found is not None:
            self._waiting_len[found.tenant] -= found.prompt.left_len
            if not self._waiting_len[found.tenant]:
                del self._waiting_len[found.tenant]
        return found

    def _hit_len(self, request: AddRequest) -> int:
        return self._recent.known_len(request.token_ids, request.cache_salt)

    def _likely_len(self, limit: int) -> int:
        return limit if self._mean_output_len is None else min(limit, round(self._mean_output_len))

    def _learn_len(self, output_len: int) -> None:
        mean = self._mean_output_len
        self._mean_output_len = output_len if mean is None else mean + _WEIGHT * (output_len - mean)
