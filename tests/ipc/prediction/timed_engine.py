"""The shipped core and client bookkeeping over a device that takes virtual time for its steps."""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import msgspec

from legato.core.config import CacheConfig, EngineConfig, SchedulerConfig
from legato.core.plan import StepOutput, StepPlan
from legato.core.request_limits import RequestLimits
from legato.core.sampling_params import SamplingParams
from legato.engine.core import Core, CoreParts
from legato.executor.request_table import RequestTable
from legato.ipc.messages import AddRequest, Failed, Ready, TokenOutput
from legato.ipc.prediction.first_token import FirstToken, FirstTokenPredictor
from legato.ipc.reply_router import Reply, ReplyRouter
from legato.kvcache.manager import KVCacheManager
from legato.scheduler.policy import make_policy
from legato.scheduler.scheduler import Scheduler

STEP_S, PROMPT_TOKEN_S, DECODE_S = 0.008, 0.0004, 0.001  # of a step, each token of prompts, each other row
EOS_ID = 2
READY = Ready(
    max_model_len=8192,
    vocab_size=1000,
    eos_ids=[EOS_ID],
    num_pages=8192,
    page_size=16,
    numeric_mode="timed",
    scheduler=SchedulerConfig(
        max_num_seqs=64,
        max_step_tokens=512,
        mixed_prefill_tokens=128,
        long_prefill_tokens=None,
        max_model_len=8192,
    ),
)


class Ask(NamedTuple):
    """A request to come."""

    prompt: tuple[int, ...]
    max_tokens: int
    output_len: int | None = None  # where it ends by itself


@dataclass
class Outcome:
    """What came of a request; `real_s` is from its arrival to its first token."""

    asked_at: float
    predicted: FirstToken | None
    real_s: float | None = None


class _Result(Future[StepOutput]):
    """Waiting for it is what moves the clock."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def result(self, timeout: float | None = None) -> StepOutput:
        self._wait()
        return super().result(timeout)


class TimedEngine:
    """Implements Executor too: each step takes as long as its tokens say, and up to a tenth more or less.

    on_end  called when a request has ended; may ask for another
    """

    def __init__(self, *, seed: int = 0, batching: str = "continuous", max_num_seqs: int = 64) -> None:
        self.now = 0.0
        self.outcomes: list[Outcome] = []
        self.on_end: Callable[[], None] = lambda: None
        self._rng = random.Random(seed)
        self._free_at = 0.0
        self._output_lens: dict[str, int | None] = {}
        self._num_given: Counter[str] = Counter()
        self._arrivals: list[tuple[float, int, Ask]] = []
        self._num_asked = count()
        config = replace(READY.scheduler, max_num_seqs=max_num_seqs)
        cache = CacheConfig(num_pages=READY.num_pages, page_size=READY.page_size)
        limits = RequestLimits(
            max_model_len=READY.max_model_len,
            pool_len=cache.num_pages * cache.page_size,
            vocab_size=READY.vocab_size,
        )
        policy = make_policy(batching, lambda: self.now)
        scheduler = Scheduler(config, policy, KVCacheManager(cache), RequestTable(max_num_seqs))
        parts = CoreParts(scheduler, self, limits, frozenset(READY.eos_ids), lookahead=1)
        self._core = Core(parts, clock=lambda: self.now)
        self.router = ReplyRouter(FirstTokenPredictor(EngineConfig(batching=batching)))
        self.router.begin(msgspec.structs.replace(READY, scheduler=config))

    def ask(self, at: float, ask: Ask) -> None:
        heappush(self._arrivals, (at, next(self._num_asked), ask))

    def run(self) -> None:
        """Until nothing is left to do or to come."""
        while self._arrivals or self.router.num_pending or self._core.has_work:
            if not self.router.num_pending and not self._core.has_work:
                self.now = max(self.now, self._arrivals[0][0])
            self._take_arrivals()
            for message in self.router.take_unsent():
                self._core.add(message)
            news = self._core.step() if self._core.has_work else ()
            self._take_arrivals()  # those of the time that the step took: they know nothing of its end
            for message in (*news, self._core.stats()):
                self.router.route(message)

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now:
            at, _, ask = heappop(self._arrivals)
            number = len(self.outcomes)
            outcome = Outcome(at, self.router.first_token(ask.prompt, ""))
            self.outcomes.append(outcome)
            name = str(number)
            self._output_lens[name] = ask.output_len
            params = SamplingParams(max_tokens=ask.max_tokens)
            request = AddRequest(request_id=name, token_ids=list(ask.prompt), params=params, seed=0)
            self.router.expect([request], partial(self._hear, outcome))

    def _hear(self, outcome: Outcome, reply: Reply) -> None:
        assert not isinstance(reply, Failed)
        if isinstance(reply, TokenOutput):
            if outcome.real_s is None:
                outcome.real_s = self.now - outcome.asked_at
            if reply.finish_reason is not None:
                self.on_end()

    # Executor

    def launch(self, plan: StepPlan) -> "Future[StepOutput]":
        num_decodes = sum(chunk.num_tokens == 1 for chunk in plan.chunks)
        seconds = STEP_S + PROMPT_TOKEN_S * (plan.num_tokens - num_decodes) + DECODE_S * num_decodes
        self._free_at = end = max(self.now, self._free_at) + seconds * self._rng.uniform(0.9, 1.1)

        def wait() -> None:
            self.now = max(self.now, end)

        sampling = [chunk.request_id for chunk in plan.chunks if chunk.samples]
        self._num_given.update(sampling)
        token_ids = {
            name: EOS_ID if self._num_given[name] == self._output_lens[name] else 7 for name in sampling
        }
        result = _Result(wait)
        result.set_result(StepOutput(plan.step, token_ids))
        return result

    def close(self) -> None:
        pass
