"""Builds the inputs of a step by hand: which tokens of which request, on which pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from legato.backends.backend import ForwardInputs


@dataclass(frozen=True)
class Chunk:
    """Tokens of one request from position `start` on; `page_ids` are all of its pages so far."""

    token_ids: Sequence[int]
    start: int
    page_ids: Sequence[int]


def make_inputs(*chunks: Chunk) -> ForwardInputs:
    """A step of these chunks in which every token samples."""
    lens = [len(chunk.token_ids) for chunk in chunks]
    page_table = np.full((len(chunks), max(len(chunk.page_ids) for chunk in chunks)), -1, np.int32)
    for row, chunk in zip(page_table, chunks, strict=True):
        row[: len(chunk.page_ids)] = chunk.page_ids
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    return ForwardInputs(
        token_ids=np.concatenate([np.array(chunk.token_ids, np.int32) for chunk in chunks]),
        positions=np.concatenate(
            [np.arange(start, start + n, dtype=np.int32) for start, n in zip(starts, lens, strict=True)]
        ),
        query_starts=np.cumsum([0, *lens], dtype=np.int32),
        kv_lens=starts + np.array(lens, np.int32),
        page_table=page_table,
        sample_rows=np.arange(sum(lens), dtype=np.int32),
    )
