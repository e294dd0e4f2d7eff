"""The steps to come, by the scheduler's own rules, until one prompt is computed."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from legato.core.config import SchedulerConfig
from legato.ipc.prediction.step_times import StepCurve

MAX_STEPS = 64  # that are looked at one by one; what lies beyond is taken to go on at the same rate
MAX_PASSED_STEPS = 4 * MAX_STEPS  # before the prompt comes; beyond them waits are taken to become shorter
MIN_SHARE = 1 / 64  # of the work that must be done by then, lest a guess be made of nothing


@dataclass(slots=True)
class Prompt:
    """One whose first token has not come: tokens left to compute, and tokens that it is likely to make."""

    left_len: int
    output_len: int


class LookAhead:
    """Continuous batching with lengths alone; pages, priorities and preemptions are left out.

    waiting  prompts in the order of their arrival
    ends     of each request that decodes, the steps until it ends
    """

    def __init__(
        self,
        curve: StepCurve,
        config: SchedulerConfig,
        waiting: Iterable[Prompt],
        ends: Iterable[int],
        *,
        prefill_first: bool = False,
    ) -> None:
        self._curve = curve
        self._config = config
        self._prefill_first = prefill_first
        self._queue = deque(waiting)
        self._computing: list[Prompt] = []  # those that hold a row and are not computed yet
        self._ends = list(ends)
        heapify(self._ends)
        self._step = 0

    def first_token_s(self, prompt_len: int, after_s: float = 0.0) -> float:
        """Seconds until a prompt has its first token that comes in `after_s` seconds: from then on."""
        seconds = -self._pass(after_s)
        if self._is_busy:  # one step computes, by half on average, and the next is planned
            seconds += 1.5 * self._advance(max_steps=1)
        own = Prompt(prompt_len, output_len=1)
        self._queue.append(own)
        all_len = self._left_len()
        for _ in range(MAX_STEPS):
            seconds += self._advance()
            if own.left_len == 0:
                return seconds
        done = 1 - self._left_len() / all_len
        return seconds / max(done, MIN_SHARE)

    def _pass(self, seconds: float) -> float:
        """Let steps go by for about so long; what is left of it when there were too many steps."""
        for _ in range(MAX_PASSED_STEPS):
            if seconds <= 0 or not self._is_busy:
                return 0.0
            max_steps = max(1, int(seconds / self._curve.seconds(len(self._ends))))
            seconds -= self._advance(max_steps)
        return max(0.0, seconds)

    @property
    def _is_busy(self) -> bool:
        return bool(self._queue or self._computing or self._ends)

    def _left_len(self) -> int:
        return sum(prompt.left_len for prompt in (*self._queue, *self._computing))

    def _advance(self, max_steps: int = sys.maxsize) -> float:
        """The seconds of the next step; or of all that are alike, until a row falls free."""
        while self._ends and self._ends[0] <= self._step:
            heappop(self._ends)
        num_decodes = len(self._ends)
        num_tokens = self._compute_prompts(num_decodes)
        if num_tokens == 0 and num_decodes:
            num_steps = min(self._ends[0] - self._step, max_steps)
            self._step += num_steps
            return num_steps * self._curve.seconds(num_decodes)
        if self._prefill_first:  # who decodes waits for this step
            self._ends = [end + 1 for end in self._ends]
            num_decodes = 0
        self._step += 1
        return self._curve.seconds(num_tokens + num_decodes)

    def _compute_prompts(self, num_decodes: int) -> int:
        """Tokens of prompts in this step; a prompt that it completes decodes from the next one on."""
        config = self._config
        room = config.max_step_tokens
        if num_decodes and not self._prefill_first:
            room = min(room - num_decodes, config.mixed_prefill_tokens)
        if room <= 0:
            return 0
        share, left = config.long_prefill_tokens or max(1, room // 2), room
        may_complete = config.long_prefill_tokens is None
        for prompt in self._in_turn(config.max_num_seqs - num_decodes - len(self._computing)):
            others_wait = len(self._computing) > 1 or bool(self._queue)
            is_short = may_complete and prompt.left_len <= left
            chunk_len = min(prompt.left_len, left, share if others_wait and not is_short else left)
            prompt.left_len -= chunk_len
            left -= chunk_len
            if prompt.left_len == 0:
                heappush(self._ends, self._step + prompt.output_len)
            if left == 0:
                break
        self._computing = [prompt for prompt in self._computing if prompt.left_len]
        return room - left

    def _in_turn(self, num_free: int) -> Iterator[Prompt]:
        """Those that hold a row, then those that get one of the free ones."""
        yield from tuple(self._computing)
        for _ in range(min(num_free, len(self._queue))):
            prompt = self._queue.popleft()
            self._computing.append(prompt)
            yield prompt
