"""What one rank owns: the compiled program, the token pool and the sampler."""

from itertools import islice

import numpy as np

from legato.backends.backend import CompiledProgram, ForwardInputs
from legato.core.plan import RowError, StepOutput, TokenLogprobs
from legato.executor.forward_batch import ForwardBatch
from legato.sampling.row_sampler import NOT_FINITE, Sampler
from legato.sampling.scoring import ScoringBatch


class ModelRunner:
    """Runs batches in the order in which they come; that order alone makes pages and rows safe to reuse.

    Tokens pass from one step to the next through the token pool, [num_rows, max_model_len] int32: the next
    step may be planned, and queued here, before the value of its first token is known to anyone.
    """

    def __init__(self, program: CompiledProgram, sampler: Sampler, num_rows: int, max_model_len: int) -> None:
        self._program = program
        self._sampler = sampler
        self._token_pool = np.zeros((num_rows, max_model_len), dtype=np.int32)

    def run(self, batch: ForwardBatch) -> StepOutput:
        for row, start in batch.row_starts:
            self._token_pool[row, : len(start.token_ids)] = start.token_ids
        self._sampler.begin(batch.row_starts)
        logits = self._program.forward(
            ForwardInputs(
                token_ids=self._token_pool[batch.token_rows, batch.positions],
                positions=batch.positions,
                query_starts=batch.query_starts,
                kv_lens=batch.kv_lens,
                page_table=batch.page_table,
                sample_rows=batch.sample_rows,
            )
        )
        num_sampled = len(batch.sampling.rows)
        chosen = self._sampler.sample(logits[:num_sampled], batch.sampling, self._token_pool)
        token_ids: dict[str, int] = {}
        errors: dict[str, RowError] = {}
        logprobs: dict[str, TokenLogprobs] = {}
        for (request_id, row, position, _), sampled in zip(batch.sampling.rows, chosen, strict=True):
            if isinstance(sampled, RowError):
                errors[request_id] = sampled
                continue
            token_ids[request_id] = self._token_pool[row, position] = sampled.token_id
            if sampled.logprobs is not None:
                logprobs[request_id] = sampled.logprobs
        prompt_logprobs, not_scored = self._score(logits[num_sampled:], batch.scoring)
        errors |= not_scored
        return StepOutput(batch.step, token_ids, errors, logprobs, prompt_logprobs, batch.completed)

    def _score(
        self, logits: np.ndarray, batch: ScoringBatch
    ) -> tuple[dict[str, list[TokenLogprobs]], dict[str, RowError]]:
        """Logprobs of each chunk's tokens, by request; and why a chunk has none."""
        prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        errors: dict[str, RowError] = {}
        rows = iter(self._sampler.score(logits, batch)) if batch.chunks else iter(())
        for chunk in batch.chunks:
            found = list(islice(rows, len(chunk.token_ids)))
            finite = [row for row in found if row is not None]
            if len(finite) == len(found):
                prompt_logprobs[chunk.request_id] = finite
            else:
                errors[chunk.request_id] = NOT_FINITE
        return prompt_logprobs, errors

    def warm(self) -> None:
        """Compute one token for nobody, so that the first request finds every buffer touched."""
        zero, one = np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32)
        self._program.forward(
            ForwardInputs(
                token_ids=zero,
                positions=zero,
                query_starts=np.array([0, 1], dtype=np.int32),
                kv_lens=one,
                page_table=np.zeros((1, 1), dtype=np.int32),
                sample_rows=zero,
            )
        )
