"""Samplers choose the tokens of a step's rows, or score given ones: in numpy, or all in one native call."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from legato.core.errors import NonFiniteLogitsError
from legato.core.plan import RowError, RowStart, TokenLogprobs
from legato.kernels.sampling import (
    SeenTokens,
    StepSampling,
    has_penalties,
    row_sampling,
    sample_rows,
    score_rows,
    step_sampling,
)
from legato.sampling.grammar import RowGrammars
from legato.sampling.random_numbers import uniform
from legato.sampling.sampler import sample, token_logprobs
from legato.sampling.scoring import ScoringBatch

if TYPE_CHECKING:
    from legato.kernels._native import Device

logger = logging.getLogger(__name__)

NOT_FINITE = RowError(
    "the model gave logits that are not finite numbers, so no token can be chosen;"
    " its weights may be damaged, or overflow in the number format that it is computed in",
    "non_finite_logits",
)
OUR_FAULT = RowError("no token could be chosen for this request; the log says why", "non_finite_logits")


class SampleRow(NamedTuple):
    """Sample a token for `request_id`; it will stand at `position` of `row` of the token pool."""

    request_id: str
    row: int
    position: int
    start: RowStart


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The rows of one step that sample, with all that is known before their logits are.

    penalized    indices of the rows whose penalties depend on the tokens before theirs
    constrained  indices of the rows that a grammar holds
    """

    rows: tuple[SampleRow, ...]
    settings: StepSampling
    penalized: tuple[int, ...]
    constrained: tuple[int, ...]


class SampledToken(NamedTuple):
    """A row's token, with its logprobs if the row's params ask for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler(Protocol):
    """Chooses tokens; a row's token depends on that row alone."""

    def begin(self, row_starts: Sequence[tuple[int, RowStart]]) -> None:
        """Note who has got a row; before the forward of the first of their tokens."""
        ...

    def sample(
        self, logits: np.ndarray, batch: SamplingBatch, token_pool: np.ndarray
    ) -> list[SampledToken | RowError]:
        """A token for each row of logits [num_rows, vocab_size], which may be overwritten.

        token_pool  [num_rows_of_pool, max_model_len] int32: the tokens before each row's position
        A RowError in place of a token says why that row has none; the other rows have theirs.
        """
        ...

    def score(self, logits: np.ndarray, batch: ScoringBatch) -> Sequence[TokenLogprobs | None]:
        """Logprobs of the batch's tokens, one in each row of logits [num_rows, vocab_size].

        None for a row whose logits are not all finite.
        """
        ...


def sampling_batch(rows: Sequence[SampleRow]) -> SamplingBatch:
    """Prepare what samples these rows; made while the step before still computes."""
    settings = [
        row_sampling(
            start.params,
            0.5 if start.params.is_greedy else uniform(start.seed, position),
            position - start.prompt_len,
            start.ending_ids,
        )
        for _, _, position, start in rows
    ]
    penalized = tuple(index for index, row in enumerate(rows) if has_penalties(row.start.params))
    constrained = tuple(index for index, row in enumerate(rows) if row.start.params.grammar is not None)
    return SamplingBatch(tuple(rows), step_sampling(settings), penalized, constrained)


class ReferenceSampler:
    """A row after the other, in numpy."""

    def __init__(self, grammars: RowGrammars | None = None) -> None:
        self._grammars = grammars or RowGrammars()

    def begin(self, row_starts: Sequence[tuple[int, RowStart]]) -> None:
        self._grammars.begin(row_starts)

    def sample(
        self, logits: np.ndarray, batch: SamplingBatch, token_pool: np.ndarray
    ) -> list[SampledToken | RowError]:
        allowed, errors = self._grammars.allowed(batch, token_pool)
        tokens = [
            errors.get(index)
            or _sample(
                row_logits, row, token_pool[row.row, : row.position], allowed.of_row(index, len(row_logits))
            )
            for index, (row_logits, row) in enumerate(zip(logits, batch.rows, strict=True))
        ]
        self._grammars.look_ahead(batch, tokens)
        return tokens

    def score(self, logits: np.ndarray, batch: ScoringBatch) -> Sequence[TokenLogprobs | None]:
        rows = zip(logits, batch.token_ids.tolist(), batch.num_logprobs.tolist(), strict=True)
        return [
            token_logprobs(row_logits, token_id, num_top) if np.isfinite(row_logits).all() else None
            for row_logits, token_id, num_top in rows
        ]


class NativeSampler:
    """All rows in one call of the kernels."""

    def __init__(self, device: "Device", grammars: RowGrammars | None = None) -> None:
        self._device = device
        self._grammars = grammars or RowGrammars()
        self._seen: dict[int, tuple[RowStart, SeenTokens]] = {}  # by row of the token pool

    def begin(self, row_starts: Sequence[tuple[int, RowStart]]) -> None:
        self._grammars.begin(row_starts)

    def sample(
        self, logits: np.ndarray, batch: SamplingBatch, token_pool: np.ndarray
    ) -> list[SampledToken | RowError]:
        seen = {index: self._seen_before(batch.rows[index], token_pool) for index in batch.penalized}
        allowed, errors = self._grammars.allowed(batch, token_pool)
        sampled = sample_rows(self._device, logits, batch.settings, seen, allowed)
        tokens: list[SampledToken | RowError] = [
            NOT_FINITE if token_id < 0 else SampledToken(token_id, logprobs)
            for token_id, logprobs in zip(sampled.token_ids.tolist(), sampled.logprobs, strict=True)
        ]
        for index, error in errors.items():
            tokens[index] = error
        self._grammars.look_ahead(batch, tokens)
        return tokens

    def score(self, logits: np.ndarray, batch: ScoringBatch) -> Sequence[TokenLogprobs | None]:
        return score_rows(self._device, logits, batch.token_ids, batch.num_logprobs)

    def _seen_before(self, row: SampleRow, token_pool: np.ndarray) -> SeenTokens:
        known = token_pool[row.row, : row.position]
        start, seen = self._seen.get(row.row, (None, None))
        if seen is None or start is not row.start:  # the row has changed hands
            seen = SeenTokens(known[: row.start.prompt_len])
            self._seen[row.row] = row.start, seen
        seen.extend(known[seen.num_read :])
        return seen


def _sample(
    logits: np.ndarray, row: SampleRow, known_ids: np.ndarray, allowed: np.ndarray | None
) -> SampledToken | RowError:
    start = row.start
    try:
        token_id = sample(
            logits,
            params=start.params,
            seed=start.seed,
            position=row.position,
            prompt_ids=known_ids[: start.prompt_len],
            output_ids=known_ids[start.prompt_len :],
            ending_ids=start.ending_ids,
            allowed=allowed,
        )
        num_top = start.params.logprobs
        return SampledToken(token_id, None if num_top is None else token_logprobs(logits, token_id, num_top))
    except NonFiniteLogitsError:
        return NOT_FINITE
    except Exception:  # a fault of ours at one row's settings must not end everybody's engine
        logger.exception("no token could be chosen at position %d of a request", row.position)
        return OUR_FAULT
