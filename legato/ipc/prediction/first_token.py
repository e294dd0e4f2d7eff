"""Predicts when a request that came now would have its first token, from all that is known of the others."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from legato.core.config import EngineConfig
from legato.ipc.messages import AddRequest, EngineStats, Ready, TokenOutput
from legato.ipc.prediction.look_ahead import LookAhead, Prompt
from legato.ipc.prediction.recent_prompts import RecentPrompts
from legato.ipc.prediction.step_times import StepTimes

MAX_WAITING = 256  # that are looked at one by one; more are taken to be like these
_WEIGHT = 0.1  # of the latest answer, in the mean length of answers


class FirstToken(NamedTuple):
    """A prediction, in seconds.

    wait_s   from now to the first token
    alone_s  the same, were there no other request
    """

    wait_s: float
    alone_s: float


@dataclass(slots=True)
class _Decoding:
    """A request that has a token; steps are counted as the engine counts them."""

    first_step: int
    likely_end: int
    last_end: int


class FirstTokenPredictor:
    """Keeps an account of who waits and who decodes, told of all that its owner hears. Not thread-safe.

    Left out: priorities, pages that run out, and all that makes an answer shorter but the mean of the
    answers before it.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self._config = config or EngineConfig()
        self._ready: Ready | None = None
        self._recent = RecentPrompts(capacity_len=0)
        self._times = StepTimes()
        self._stats = EngineStats()
        self._waiting: dict[str, tuple[Prompt, int]] = {}  # with their limits of output, in order of arrival
        self._waiting_len = 0  # tokens that these have to compute
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
            self._waiting[request.request_id] = prompt, limit
            self._waiting_len += prompt.left_len

    def take_token(self, message: TokenOutput) -> None:
        found = self._waiting.pop(message.request_id, None)
        if found is not None:
            prompt, limit = found
            now = self._stats.step
            self._waiting_len -= prompt.left_len
            self._decoding[message.request_id] = _Decoding(now, now + prompt.output_len, now + limit)
        if message.finish_reason is not None:
            self._learn_len(message.index + len(message.token_ids))
            self._decoding.pop(message.request_id, None)

    def forget(self, request_id: str) -> None:
        """The request has ended without a last token: aborted, by its stop text perhaps, or failed."""
        found = self._waiting.pop(request_id, None)
        if found is not None:
            self._waiting_len -= found[0].left_len
        decoding = self._decoding.pop(request_id, None)
        if decoding is not None:
            self._learn_len(max(1, self._stats.step - decoding.first_step))

    def take_stats(self, stats: EngineStats) -> None:
        self._stats = stats
        self._times.record(stats)

    def predict(self, token_ids: Sequence[int], cache_salt: str = "") -> FirstToken | None:
        """Of a prompt that came now; None before the engine has computed enough to know its speed."""
        curve = self._times.curve()
        if self._ready is None or curve is None or self._config.batching == "static":
            return None
        own_len = max(1, len(token_ids) - self._recent.known_len(token_ids, cache_salt))
        prefill_first = self._config.batching == "prefill-first"
        scheduler = self._ready.scheduler
        alone = LookAhead(curve, scheduler, (), (), prefill_first=prefill_first)
        ahead = LookAhead(
            curve, scheduler, self._prompts_ahead(), self._steps_left(), prefill_first=prefill_first
        )
        hidden = max(1.0, len(self._waiting) / MAX_WAITING)
        return FirstToken(ahead.first_token_s(own_len) * hidden, alone.first_token_s(own_len))

    def _prompts_ahead(self) -> Iterator[Prompt]:
        """Those that wait, less what is computed of them, which is mostly of the oldest."""
        num_computed = self._stats.prefilled_tokens
        for prompt, _ in islice(self._waiting.values(), MAX_WAITING):
            num_done = min(num_computed, prompt.left_len - 1)
            num_computed -= num_done
            yield Prompt(prompt.left_len - num_done, prompt.output_len)

    def _steps_left(self) -> Iterator[int]:
        """Of each that decodes; one that has outlived its likely end is taken to begin again."""
        now = self._stats.step
        for each in self._decoding.values():
            likely = each.likely_end - now
            yield max(1, likely if likely > 0 else self._likely_len(each.last_end - now))

    def _hit_len(self, request: AddRequest) -> int:
        return self._recent.known_len(request.token_ids, request.cache_salt)

    def _likely_len(self, limit: int) -> int:
        return limit if self._mean_output_len is None else min(limit, round(self._mean_output_len))

    def _learn_len(self, output_len: int) -> None:
        mean = self._mean_output_len
        self._mean_output_len = output_len if mean is None else mean + _WEIGHT * (output_len - mean)
