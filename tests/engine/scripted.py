"""A core over the shipped scheduler, and an executor that samples from a script instead of a model."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.plan import RowError, StepOutput, StepPlan, TokenLogprobs
from legato.core.request_limits import RequestLimits
from legato.core.sampling_params import SamplingParams
from legato.engine.core import Core, CoreParts, Grammars
from legato.executor.request_table import RequestTable
from legato.ipc.messages import Accepted, AddRequest, Failed, Rejected, TokenOutput
from legato.kvcache.manager import KVCacheManager
from legato.scheduler.policy import make_policy
from legato.scheduler.scheduler import Scheduler

EOS, OTHER = 2, 9
VOCAB_SIZE = 100


@dataclass
class ScriptedExecutor:
    """Implements Executor: a request's n-th output token is the n-th of its script, then OTHER.

    broken    requests for which no token can be sampled
    logprobs  of every token of a request, and of every prompt token that is scored
    launched  (request, output index) of each token sampled, wanted or not
    """

    scripts: dict[str, list[int]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    launched: list[tuple[str, int]] = field(default_factory=list)
    is_closed: bool = False
    _prompt_lens: dict[str, int] = field(default_factory=dict)

    def launch(self, plan: StepPlan) -> "Future[StepOutput]":
        token_ids, errors = {}, {}
        for chunk in plan.chunks:
            if chunk.row_start:
                self._prompt_lens[chunk.request_id] = chunk.row_start.prompt_len
            if chunk.samples and chunk.request_id in self.broken:
                errors[chunk.request_id] = RowError("no numbers", "non_finite_logits")
            elif chunk.samples:
                token_ids[chunk.request_id] = self._token(chunk.request_id, chunk.end)
        logprobs = {each: self.logprobs[each] for each in token_ids if each in self.logprobs}
        prompt_logprobs = {
            chunk.request_id: [self.logprobs[chunk.request_id]] * len(chunk.scored)
            for chunk in plan.chunks
            if chunk.scored
        }
        completed = tuple(chunk.request_id for chunk in plan.chunks if chunk.completes)
        future: Future[StepOutput] = Future()
        future.set_result(StepOutput(plan.step, token_ids, errors, logprobs, prompt_logprobs, completed))
        return future

    def close(self) -> None:
        self.is_closed = True

    def _token(self, request_id: str, position: int) -> int:
        index = position - self._prompt_lens[request_id]
        self.launched.append((request_id, index))
        script = self.scripts.get(request_id, [])
        return script[index] if index < len(script) else OTHER


def scripted_core(
    executor: ScriptedExecutor,
    *,
    lookahead: int = 0,
    max_num_seqs: int = 4,
    num_pages: int = 32,
    max_queued: int = 100,
    max_queued_tokens: int | None = None,
    is_fair: bool = True,
    clock: Callable[[], float] = lambda: 0.0,
    grammars: Grammars | None = None,
) -> Core:
    """Pages of 4 tokens, a context of 64, steps of 16."""
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_step_tokens=16,
        mixed_prefill_tokens=16,
        long_prefill_tokens=8,
        max_model_len=64,
        max_queued=max_queued,
        max_queued_tokens=max_queued_tokens,
        is_fair=is_fair,
    )
    cache = CacheConfig(num_pages=num_pages, page_size=4)
    scheduler = Scheduler(
        config, make_policy("continuous", lambda: 0.0), KVCacheManager(cache), RequestTable(max_num_seqs)
    )
    limits = RequestLimits(max_model_len=64, pool_len=num_pages * 4, vocab_size=VOCAB_SIZE)
    return Core(CoreParts(scheduler, executor, limits, frozenset({EOS}), lookahead, grammars), clock)


def make_message(
    request_id: str, *, prompt_len: int = 3, first_id: int = 10, tenant: str = "", **params: object
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        token_ids=[first_id + place for place in range(prompt_len)],
        params=SamplingParams(**{"max_tokens": 5, **params}),
        seed=0,
        tenant=tenant,
    )


def add_all(core: Core, *messages: AddRequest) -> None:
    for message in messages:
        assert core.add(message) == Accepted(request_id=message.request_id)


def rejection(core: Core, **fields: object) -> Rejected:
    answer = core.add(make_message(**fields))  # type: ignore[arg-type]
    assert isinstance(answer, Rejected)
    return answer


def run_to_end(core: Core) -> list[TokenOutput | Failed]:
    outputs = []
    while core.has_work:
        outputs += step(core)
    return outputs


def step(core: Core) -> list[TokenOutput | Failed]:
    """What a step gave, without the course of each request."""
    return [msgspec.structs.replace(output, course=None) for output in core.step()]
