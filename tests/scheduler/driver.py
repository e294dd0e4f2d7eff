"""Drives the shipped scheduler over the simulation's device, whose tokens come late if asked to."""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.plan import StepOutput
from legato.core.request import Request
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.executor.request_table import RequestTable
from legato.kvcache.manager import KVCacheManager
from legato.scheduler.events import Broken, Event, NewToken
from legato.scheduler.policy import make_policy
from legato.scheduler.scheduler import Scheduler
from legato.sim import fake_model
from legato.sim.fake_device import FakeDevice


def make_request(
    request_id: str,
    prompt_len: int | list[int] = 4,
    max_tokens: int = 4,
    *,
    is_scored: bool = False,
    **fields: object,
) -> Request:
    """A request whose prompt is its own, or the given ids."""
    if isinstance(prompt_len, int):
        token_ids = [100 + (hash_of(request_id) + place) % 800 for place in range(prompt_len)]
    else:
        token_ids = list(prompt_len)
    return Request(
        request_id=request_id,
        token_ids=token_ids,
        prompt_len=len(token_ids),
        max_device_len=len(token_ids) + max_tokens,
        params=SamplingParams(max_tokens=max_tokens, prompt_logprobs=0 if is_scored else None),
        **fields,  # type: ignore[arg-type]
    )


def hash_of(text: str) -> int:
    return sum((place + 1) * ord(letter) for place, letter in enumerate(text))


def make_scheduler(
    *,
    max_num_seqs: int = 8,
    max_step_tokens: int = 64,
    mixed_prefill_tokens: int | None = None,
    long_prefill_tokens: int | None = None,
    num_pages: int = 64,
    page_size: int = 4,
    batching: str = "continuous",
    enable_prefix_caching: bool = True,
    max_preemptions: int = 3,
    max_step_scores: int = 64,
    is_fair: bool = True,
    fair_step_tokens: int = 4,
) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        mixed_prefill_tokens=mixed_prefill_tokens or max_step_tokens,
        long_prefill_tokens=long_prefill_tokens,
        max_model_len=1 << 16,
        max_preemptions=max_preemptions,
        max_step_scores=max_step_scores,
        is_fair=is_fair and batching == "continuous",
        fair_step_tokens=fair_step_tokens,
    )
    cache = CacheConfig(num_pages=num_pages, page_size=page_size, enable_prefix_caching=enable_prefix_caching)
    clock = iter(range(1 << 30))
    policy = make_policy(batching, lambda: float(next(clock)))
    return Scheduler(config, policy, KVCacheManager(cache), RequestTable(max_num_seqs))


@dataclass
class Driver:
    """Plans, "computes" and updates; `lookahead` steps may be in flight while the next is planned.

    The device asserts that a step keeps to its budgets and reads what was written for each request alone.
    """

    scheduler: Scheduler
    lookahead: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)  # request id -> output
    scores: dict[str, list[float]] = field(default_factory=dict)  # request id -> logprobs of its prompt
    finished: dict[str, FinishReason] = field(default_factory=dict)
    shares: list[dict[str, int]] = field(default_factory=list)  # per step: request id -> tokens computed
    _in_flight: deque[Future[StepOutput]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._device = FakeDevice(self.scheduler.config, self.scheduler.kv.config.page_size)

    def step(self) -> dict[str, int]:
        """One step; what it computed for whom."""
        plan = self.scheduler.plan()
        share = {chunk.request_id: chunk.num_tokens for chunk in plan.chunks}
        assert share.keys() <= self.scheduler.running.keys(), "nobody is preempted once the plan has them"
        if plan.chunks:
            self.shares.append(share)
            self._in_flight.append(self._device.launch(plan))
            self.scheduler.launched(plan)
        if self._in_flight and (len(self._in_flight) > self.lookahead or not plan.chunks):
            self._update(self._in_flight.popleft().result())
        self.scheduler.check_integrity()
        return share

    def run(self, max_steps: int = 10_000) -> None:
        """Until every request has ended."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests and not self._in_flight:
                return
            self.step()
        raise AssertionError(f"still running after {max_steps} steps: {list(self.scheduler.requests)}")

    def _update(self, output: StepOutput) -> None:
        for event in self.scheduler.update(output):
            assert not isinstance(event, Broken)
            request_id = event.request.request_id
            output_ids = self.tokens.setdefault(request_id, [])
            if isinstance(event, NewToken):
                assert event.index == len(output_ids), "each token arrives once, in order"
                output_ids.append(event.token_id)
            self._take_scores(event)
            if event.request.finish_reason is not None:
                assert request_id not in self.finished
                self.finished[request_id] = event.request.finish_reason

    def _take_scores(self, event: Event) -> None:
        assert not isinstance(event, Broken)
        if event.prompt_logprobs:
            assert len(self.tokens[event.request.request_id]) <= 1, "they come with the first message"
            assert event.request.request_id not in self.scores
            self.scores[event.request.request_id] = [each.logprob for each in event.prompt_logprobs]


def expected_scores(request: Request) -> list[float]:
    """Of every prompt token but the first, if the request asks for them."""
    return fake_model.expected_scores(request.token_ids[: request.prompt_len]) if request.is_scored else []


def expected_output(request: Request) -> list[int]:
    """The tokens that the request must get, whatever the batch."""
    return fake_model.expected_output(
        request.token_ids[: request.prompt_len],
        request.max_device_len - request.prompt_len,
        request.seed,
        request.ending_ids,
    )
