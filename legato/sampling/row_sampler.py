"""Samplers choose the tokens of a step's rows: in numpy, or all rows in one native call."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from legato.core.errors import NonFiniteLogitsError
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import SamplingParams
from legato.kernels.sampling import row_sampling, sample_rows
from legato.sampling.random_numbers import uniform
from legato.sampling.sampler import sample, token_logprobs

if TYPE_CHECKING:
    from legato.kernels._native import Device

logger = logging.getLogger(__name__)

NOT_FINITE = (
    "the model gave logits that are not finite numbers, so no token can be chosen;"
    " its weights may be damaged, or overflow in the number format that it is computed in"
)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What chooses one row's token: the arguments of `sampling.sampler.sample` but for the logits."""

    params: SamplingParams
    seed: int
    position: int
    prompt_ids: np.ndarray
    output_ids: np.ndarray
    ending_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A row's token, with its logprobs if the row's params ask for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler(Protocol):
    """Chooses tokens; a row's token depends on that row alone."""

    def sample(self, logits: np.ndarray, rows: Sequence[SampleRow]) -> list[SampledToken | str]:
        """A token for each row of logits [num_rows, vocab_size], which may be overwritten.

        A text in place of a token says why that row has none; the other rows have theirs.
        """
        ...


class ReferenceSampler:
    """A row after the other, in numpy."""

    def sample(self, logits: np.ndarray, rows: Sequence[SampleRow]) -> list[SampledToken | str]:
        return [_sample(row_logits, row) for row_logits, row in zip(logits, rows, strict=True)]


class NativeSampler:
    """All rows in one call of the kernels."""

    def __init__(self, device: "Device") -> None:
        self._device = device

    def sample(self, logits: np.ndarray, rows: Sequence[SampleRow]) -> list[SampledToken | str]:
        settings = [
            row_sampling(
                row.params, uniform(row.seed, row.position), row.prompt_ids, row.output_ids, row.ending_ids
            )
            for row in rows
        ]
        sampled = sample_rows(self._device, logits, settings)
        return [
            NOT_FINITE if token_id < 0 else SampledToken(token_id, logprobs)
            for token_id, logprobs in zip(sampled.token_ids.tolist(), sampled.logprobs, strict=True)
        ]


def _sample(logits: np.ndarray, row: SampleRow) -> SampledToken | str:
    try:
        token_id = sample(
            logits,
            params=row.params,
            seed=row.seed,
            position=row.position,
            prompt_ids=row.prompt_ids,
            output_ids=row.output_ids,
            ending_ids=row.ending_ids,
        )
        num_top = row.params.logprobs
        return SampledToken(token_id, None if num_top is None else token_logprobs(logits, token_id, num_top))
    except NonFiniteLogitsError:
        return NOT_FINITE
    except Exception:  # a fault of ours at one row's settings must not end everybody's engine
        logger.exception("no token could be chosen at position %d of a request", row.position)
        return "no token could be chosen for this request; the log says why"
