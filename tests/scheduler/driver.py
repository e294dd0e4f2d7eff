"""Drives the shipped scheduler without arrays: a fake executor makes tokens from a hash, late if asked to."""

from collections import deque
from dataclasses import dataclass, field

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.plan import ScheduledChunk, StepOutput, StepPlan, TokenLogprobs
from legato.core.request import Request
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.executor.request_table import RequestTable
from legato.kvcache.manager import KVCacheManager
from legato.scheduler.policy import make_policy
from legato.scheduler.scheduler import Broken, Event, NewToken, Scheduler

EOS = 7


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
) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        mixed_prefill_tokens=mixed_prefill_tokens or max_step_tokens,
        long_prefill_tokens=long_prefill_tokens,
        max_model_len=1 << 16,
        max_preemptions=max_preemptions,
        max_step_scores=max_step_scores,
    )
    cache = CacheConfig(num_pages=num_pages, page_size=page_size, enable_prefix_caching=enable_prefix_caching)
    clock = iter(range(1 << 30))
    policy = make_policy(batching, lambda: float(next(clock)))
    return Scheduler(config, policy, KVCacheManager(cache), RequestTable(max_num_seqs))


@dataclass
class Driver:
    """Plans, "computes" and updates; `lookahead` steps may be in flight while the next is planned.

    The fake device keeps what a real one would: the tokens of each row, and which token of which row each
    page holds. Like a backend, it writes all of a step's positions before it reads any. It asserts that every
    position that a step reads was written, by this very prefix.
    """

    scheduler: Scheduler
    lookahead: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)  # request id -> output
    scores: dict[str, list[float]] = field(default_factory=dict)  # request id -> logprobs of its prompt
    finished: dict[str, FinishReason] = field(default_factory=dict)
    shares: list[dict[str, int]] = field(default_factory=list)  # per step: request id -> tokens computed
    _in_flight: deque[StepOutput] = field(default_factory=deque)
    _rows: dict[int, list[int]] = field(default_factory=dict)
    _row_pages: dict[int, list[int]] = field(default_factory=dict)
    _page_keys: dict[tuple[int, int], int] = field(default_factory=dict)  # (page, offset) -> hash of prefix

    def step(self) -> dict[str, int]:
        """One step; what it computed for whom."""
        plan = self.scheduler.plan()
        share = {chunk.request_id: chunk.num_tokens for chunk in plan.chunks}
        config = self.scheduler.config
        assert sum(share.values()) <= config.max_step_tokens
        num_logits = sum(len(chunk.scored) + chunk.samples for chunk in plan.chunks)
        assert num_logits <= config.max_step_logits == config.max_num_seqs + config.max_step_scores
        assert share.keys() <= self.scheduler.running.keys(), "nobody is preempted once the plan has them"
        if plan.chunks:
            self.shares.append(share)
            self._in_flight.append(self._compute(plan))
            self.scheduler.launched(plan)
        if self._in_flight and (len(self._in_flight) > self.lookahead or not plan.chunks):
            self._update(self._in_flight.popleft())
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

    def _compute(self, plan: StepPlan) -> StepOutput:
        page_size = self.scheduler.kv.config.page_size
        output = StepOutput(
            plan.step, {}, completed=tuple(chunk.request_id for chunk in plan.chunks if chunk.completes)
        )
        to_read: list[tuple[tuple[int, int], int]] = []
        for chunk in plan.chunks:
            if chunk.row_start is not None:
                self._rows[chunk.row] = list(chunk.row_start.token_ids)
                self._row_pages[chunk.row] = []
            ids, pages = self._rows[chunk.row], self._row_pages[chunk.row]
            assert len(pages) >= chunk.page_start
            pages[chunk.page_start :] = chunk.new_pages
            keys = [hash(tuple(ids[: position + 1])) for position in range(chunk.end)]
            places = [(pages[position // page_size], position % page_size) for position in range(chunk.end)]
            to_read += zip(places[: chunk.start], keys, strict=False)
            self._page_keys |= dict(zip(places[chunk.start :], keys[chunk.start :], strict=True))
            if chunk.scored:
                output.prompt_logprobs[chunk.request_id] = _scores(chunk, ids)
            if chunk.samples:
                token_id = next_token(ids[: chunk.end])
                del ids[chunk.end :]
                ids.append(token_id)
                output.token_ids[chunk.request_id] = token_id
        for place, key in to_read:
            assert self._page_keys.get(place) == key, "a step reads K/V that is not its own prefix's"
        return output


def _scores(chunk: ScheduledChunk, ids: list[int]) -> list[TokenLogprobs]:
    assert chunk.start <= chunk.scored.start
    assert chunk.scored.stop <= chunk.end
    return [TokenLogprobs(score_of(ids[: position + 2]), (), ()) for position in chunk.scored]


def score_of(prefix: list[int]) -> float:
    """What the fake model gives the last token of `prefix`, after those before it."""
    return float(hash(tuple(prefix)) % 997)


def expected_scores(request: Request) -> list[float]:
    """Of every prompt token but the first, if the request asks for them."""
    if request.params.prompt_logprobs is None:
        return []
    return [score_of(request.token_ids[:end]) for end in range(2, request.prompt_len + 1)]


def next_token(prefix: list[int]) -> int:
    """What the fake model says after a prefix: now and then the end, else some token."""
    value = hash(tuple(prefix)) % 997
    return EOS if value % 40 == 0 else 100 + value % 800


def expected_output(request: Request) -> list[int]:
    """The tokens that the request must get, whatever the batch."""
    prefix = list(request.token_ids[: request.prompt_len])
    while len(prefix) < request.max_device_len:
        prefix.append(next_token(prefix))
        if prefix[-1] in request.ending_ids:
            break
    return prefix[request.prompt_len :]
