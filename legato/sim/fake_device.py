"""A device that keeps what a real one would, and asserts that every read is of what was written for it."""

from collections.abc import Collection
from concurrent.futures import Future

from legato.core.config import SchedulerConfig
from legato.core.plan import ScheduledChunk, StepOutput, StepPlan, TokenLogprobs
from legato.sim.fake_model import extend, next_token, score


class EngineCrash(BaseException):
    """The engine process dies in the middle of a step."""


class FakeDevice:
    """Implements Executor. Keeps the tokens of each row and, for each place in the K/V pool, the key of the
    prefix whose last token was written there.

    Like a backend, it writes all of a step's positions before it reads any. Raises AssertionError when a
    request would read what is not of its own prefix.

    poison_ids  requests that crash the engine in each of their steps
    """

    def __init__(self, config: SchedulerConfig, page_size: int, poison_ids: Collection[str] = ()) -> None:
        self.running_ids: tuple[str, ...] = ()  # of the latest step
        self._has_launched = False
        self._config = config
        self._page_size = page_size
        self._poison_ids = frozenset(poison_ids)
        self._tokens: dict[int, list[int]] = {}  # by row
        self._keys: dict[int, list[int]] = {}  # by row: of the prefix that ends at each position
        self._seeds: dict[int, int] = {}
        self._pages: dict[int, list[int]] = {}  # by row
        self._written: dict[tuple[int, int], int] = {}  # (page, offset) -> key

    def launch(self, plan: StepPlan) -> "Future[StepOutput]":
        self._has_launched = True
        self.running_ids = tuple(chunk.request_id for chunk in plan.chunks)
        if not self._poison_ids.isdisjoint(self.running_ids):
            raise EngineCrash
        num_logits = sum(len(chunk.scored) + chunk.samples for chunk in plan.chunks)
        assert plan.num_tokens <= self._config.max_step_tokens, f"{plan.num_tokens} tokens in a step"
        assert num_logits <= self._config.max_step_logits, f"{num_logits} rows of logits in a step"
        completed = tuple(chunk.request_id for chunk in plan.chunks if chunk.completes)
        output = StepOutput(plan.step, {}, completed=completed)
        for chunk in plan.chunks:
            self._write(chunk)
        for chunk in plan.chunks:
            self._read(chunk)
            if chunk.scored:
                output.prompt_logprobs[chunk.request_id] = self._scores(chunk)
            if chunk.samples:
                output.token_ids[chunk.request_id] = self._sample(chunk)
        future: Future[StepOutput] = Future()
        future.set_result(output)
        return future

    def take_has_launched(self) -> bool:
        """Whether a step was launched since this was last asked."""
        has_launched, self._has_launched = self._has_launched, False
        return has_launched

    def close(self) -> None:
        """Nothing runs between two calls."""

    def _write(self, chunk: ScheduledChunk) -> None:
        row = chunk.row
        if chunk.row_start is not None:
            self._tokens[row] = list(chunk.row_start.token_ids)
            self._seeds[row] = chunk.row_start.seed
            self._keys[row], self._pages[row] = [], []
        pages, tokens, keys = self._pages[row], self._tokens[row], self._keys[row]
        assert len(pages) >= chunk.page_start, f"{chunk.request_id}: pages are missing before the new ones"
        pages[chunk.page_start :] = chunk.new_pages
        for token_id in tokens[len(keys) : chunk.end]:
            keys.append(extend(keys[-1] if keys else 0, token_id))
        assert len(keys) >= chunk.end, f"{chunk.request_id}: computes tokens that nobody knows"
        for position in range(chunk.start, chunk.end):
            self._written[self._place(row, position)] = keys[position]

    def _read(self, chunk: ScheduledChunk) -> None:
        keys = self._keys[chunk.row]
        for position in range(chunk.end):
            found = self._written.get(self._place(chunk.row, position))
            assert found == keys[position], (
                f"{chunk.request_id}: position {position} is not its own prefix's in page"
                f" {self._place(chunk.row, position)[0]}"
            )

    def _place(self, row: int, position: int) -> tuple[int, int]:
        number, offset = divmod(position, self._page_size)
        assert number < len(self._pages[row]), f"row {row}: position {position} has no page"
        return self._pages[row][number], offset

    def _scores(self, chunk: ScheduledChunk) -> list[TokenLogprobs]:
        assert chunk.start <= chunk.scored.start
        assert chunk.scored.stop <= chunk.end
        keys, tokens = self._keys[chunk.row], self._tokens[chunk.row]
        return [
            TokenLogprobs(score(extend(keys[position], tokens[position + 1])), (), ())
            for position in chunk.scored
        ]

    def _sample(self, chunk: ScheduledChunk) -> int:
        tokens, keys = self._tokens[chunk.row], self._keys[chunk.row]
        token_id = next_token(keys[chunk.end - 1], self._seeds[chunk.row])
        del tokens[chunk.end :], keys[chunk.end :]
        tokens.append(token_id)
        return token_id
