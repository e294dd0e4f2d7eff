"""A StepPlan as arrays: what one forward reads, prepared on the scheduler's thread."""

from dataclasses import dataclass

import numpy as np

from legato.core.plan import RowStart, ScheduledChunk, StepPlan
from legato.sampling.row_sampler import SampleRow, SamplingBatch, sampling_batch
from legato.sampling.scoring import ScoredChunk, ScoringBatch, scoring_batch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's inputs; everything but the token ids, which the device side reads from its token pool.

    row_starts    rows that were taken since the last step, and what they hold
    token_rows    [num_tokens] int32     row of the token pool, for each token of the step
    positions     [num_tokens] int32     position in that row
    query_starts  [num_requests + 1] int32  tokens of request i are query_starts[i] .. query_starts[i + 1]
    kv_lens       [num_requests] int32   tokens of K/V after this step
    page_table    [num_requests, max_pages] int32  a copy: the table moves on while this step computes
    sampling      of the requests that sample, in order
    scoring       of the prompt tokens whose logprobs are asked for
    sample_rows   [num_logits] int32     index among the step's tokens: those that sample, then the scored
    completed     requests that end with this step and get no token
    """

    step: int
    row_starts: tuple[tuple[int, RowStart], ...]
    token_rows: np.ndarray
    positions: np.ndarray
    query_starts: np.ndarray
    kv_lens: np.ndarray
    page_table: np.ndarray
    sampling: SamplingBatch
    scoring: ScoringBatch
    sample_rows: np.ndarray
    completed: tuple[str, ...]


class BatchBuilder:
    """Owns what is known of each row, page table and start, and turns plans into batches.

    A row's entries past its request's end keep an older request's pages; nobody reads them.
    """

    def __init__(self, num_rows: int, max_pages: int) -> None:
        self._page_table = np.zeros((num_rows, max_pages), dtype=np.int32)
        self._starts: dict[int, RowStart] = {}

    def build(self, plan: StepPlan) -> ForwardBatch:
        chunks = plan.chunks
        row_starts = tuple((chunk.row, chunk.row_start) for chunk in chunks if chunk.row_start)
        self._starts.update(row_starts)
        for chunk in chunks:
            if chunk.new_pages:
                page_end = chunk.page_start + len(chunk.new_pages)
                self._page_table[chunk.row, chunk.page_start : page_end] = chunk.new_pages
        shape = np.array([(chunk.row, chunk.start, chunk.num_tokens) for chunk in chunks], dtype=np.int32)
        rows, starts, lens = np.ascontiguousarray(shape.T)
        query_starts = np.zeros(len(chunks) + 1, dtype=np.int32)
        np.cumsum(lens, out=query_starts[1:])
        # A token's position: its index in the step, counted from where its chunk would have position 0.
        positions = np.arange(query_starts[-1], dtype=np.int32) + np.repeat(starts - query_starts[:-1], lens)
        is_sampling = [chunk.samples for chunk in chunks]
        sample_rows = query_starts[1:][is_sampling] - 1
        scored = [
            (chunk, first)
            for chunk, first in zip(chunks, query_starts.tolist(), strict=False)
            if chunk.scored
        ]
        if scored:
            scored_rows = [
                np.array(chunk.scored, np.int32) + (first - chunk.start) for chunk, first in scored
            ]
            sample_rows = np.concatenate([sample_rows, *scored_rows])
        return ForwardBatch(
            step=plan.step,
            row_starts=row_starts,
            token_rows=np.repeat(rows, lens),
            positions=positions,
            query_starts=query_starts,
            kv_lens=starts + lens,
            page_table=self._page_table[rows],
            sampling=sampling_batch(
                [
                    SampleRow(chunk.request_id, chunk.row, chunk.end, self._starts[chunk.row])
                    for chunk in chunks
                    if chunk.samples
                ]
            ),
            scoring=scoring_batch([self._scored_chunk(chunk) for chunk, _ in scored]),
            sample_rows=sample_rows,
            completed=tuple(chunk.request_id for chunk in chunks if chunk.completes),
        )

    def _scored_chunk(self, chunk: ScheduledChunk) -> ScoredChunk:
        start, scored = self._starts[chunk.row], chunk.scored
        assert start.params.prompt_logprobs is not None
        next_ids = start.token_ids[scored.start + 1 : scored.stop + 1]
        return ScoredChunk(chunk.request_id, next_ids, start.params.prompt_logprobs)
