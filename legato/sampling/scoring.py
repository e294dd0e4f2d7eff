"""Which rows of a step's logits give logprobs of prompt tokens, and of which tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ScoredChunk(NamedTuple):
    """A row of logits for each of token_ids: those that follow the rows' positions in the prompt.

    num_top  how many of the most probable tokens are told beside each
    """

    request_id: str
    token_ids: Sequence[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class ScoringBatch:
    """The rows of one step that are scored, a chunk's together and in its order.

    token_ids     [num_rows] int32
    num_logprobs  [num_rows] int32
    """

    chunks: tuple[ScoredChunk, ...]
    token_ids: NDArray[np.int32]
    num_logprobs: NDArray[np.int32]


def scoring_batch(chunks: Sequence[ScoredChunk]) -> ScoringBatch:
    """Prepare what scores these chunks; made while the step before still computes."""
    lengths = [len(chunk.token_ids) for chunk in chunks]
    return ScoringBatch(
        tuple(chunks),
        token_ids=np.array([token_id for chunk in chunks for token_id in chunk.token_ids], np.int32),
        num_logprobs=np.repeat(np.array([chunk.num_top for chunk in chunks], np.int32), lengths),
    )
