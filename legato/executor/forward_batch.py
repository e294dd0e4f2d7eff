"""A StepPlan as arrays: what one forward reads, prepared on the scheduler's thread."""

from dataclasses import dataclass

import numpy as np

from legato.core.plan import RowStart, ScheduledChunk, StepPlan


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample a token for `request_id`; it will stand at `position` of `row`."""

    request_id: str
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's inputs; everything but the token ids, which the device side reads from its token pool.

    row_starts    rows that were taken since the last step, and what they hold
    token_rows    [num_tokens] int32     row of the token pool, for each token of the step
    positions     [num_tokens] int32     position in that row
    query_starts  [num_requests + 1] int32  tokens of request i are query_starts[i] .. query_starts[i + 1]
    kv_lens       [num_requests] int32   tokens of K/V after this step
    page_table    [num_requests, max_pages] int32  a copy: the table moves on while this step computes
    samples       one for each request that samples
    sample_rows   [num_samples] int32    index among the step's tokens
    """

    step: int
    row_starts: tuple[tuple[int, RowStart], ...]
    token_rows: np.ndarray
    positions: np.ndarray
    query_starts: np.ndarray
    kv_lens: np.ndarray
    page_table: np.ndarray
    samples: tuple[Sample, ...]
    sample_rows: np.ndarray


class BatchBuilder:
    """Owns the page table, indexed by row, and turns plans into batches.

    A row's entries past its request's end keep an older request's pages; nobody reads them.
    """

    def __init__(self, num_rows: int, max_pages: int) -> None:
        self._page_table = np.zeros((num_rows, max_pages), dtype=np.int32)

    def build(self, plan: StepPlan) -> ForwardBatch:
        chunks = plan.chunks
        for chunk in chunks:
            page_end = chunk.page_start + len(chunk.new_pages)
            self._page_table[chunk.row, chunk.page_start : page_end] = chunk.new_pages
        rows = np.array([chunk.row for chunk in chunks], dtype=np.int32)
        lens = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int32)
        query_starts = np.zeros(len(chunks) + 1, dtype=np.int32)
        np.cumsum(lens, out=query_starts[1:])
        sampling = [(index, chunk) for index, chunk in enumerate(chunks) if chunk.samples]
        return ForwardBatch(
            step=plan.step,
            row_starts=tuple((chunk.row, chunk.row_start) for chunk in chunks if chunk.row_start),
            token_rows=np.repeat(rows, lens),
            positions=_positions(chunks),
            query_starts=query_starts,
            kv_lens=np.array([chunk.end for chunk in chunks], dtype=np.int32),
            page_table=self._page_table[rows],
            samples=tuple(Sample(chunk.request_id, chunk.row, chunk.end) for _, chunk in sampling),
            sample_rows=query_starts[[index + 1 for index, _ in sampling]] - 1,
        )


def _positions(chunks: tuple[ScheduledChunk, ...]) -> np.ndarray:
    return np.concatenate([np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks])
