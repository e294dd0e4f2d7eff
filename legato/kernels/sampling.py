"""Native calls that sample or score all rows of a step, with the meanings of `sampling.sampler`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from legato.kernels._native import Device

NO_IDS: NDArray[np.int32] = np.zeros(0, np.int32)
NO_LOGPROBS = -1
NUM_SETTINGS = 8
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row of logits becomes a token, as far as it is known before the row is.

    number  uniform in (0, 1), of the request's seed and the token's position
    added   token id -> added to its logit; -inf forbids the token, whatever else is said of it
    """

    params: SamplingParams
    number: float
    added: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSampling:
    """The RowSampling of all rows of a step, as the native call reads it.

    temperatures  [num_rows] float32, 0 for a greedy row
    top_ks        [num_rows] int32, 0 for every token
    top_ps        [num_rows] float32
    min_ps        [num_rows] float32
    numbers       [num_rows] float64
    added_starts  [num_rows + 1] int32: row r adds to the ids of [added_starts[r], added_starts[r + 1])
    added_ids     [num_added] int32
    added_values  [num_added] float32
    penalties     [num_rows, 3] float64: repetition, frequency, presence
    num_logprobs  [num_rows] int32, NO_LOGPROBS for a row that wants none
    """

    temperatures: NDArray[np.float32]
    top_ks: NDArray[np.int32]
    top_ps: NDArray[np.float32]
    min_ps: NDArray[np.float32]
    numbers: NDArray[np.float64]
    added_starts: NDArray[np.int32]
    added_ids: NDArray[np.int32]
    added_values: NDArray[np.float32]
    penalties: NDArray[np.float64]
    num_logprobs: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that rows may become, whatever else is said of them.

    masks      [num_masks, num_words] uint32: bit i of word w is the token 32 * w + i; none past the end
    mask_rows  [num_rows] int32: the mask of each row, -1 for one that may become any; empty: all of them may
    """

    masks: NDArray[np.uint32]
    mask_rows: NDArray[np.int32]

    def of_row(self, row: int, vocab_size: int) -> NDArray[np.bool_] | None:
        """[vocab_size], whether the row may become each token; None when it may become any."""
        if not len(self.mask_rows) or self.mask_rows[row] < 0:
            return None
        flags = np.unpackbits(self.masks[self.mask_rows[row]].astype("<u4").view(np.uint8), bitorder="little")
        allowed = np.zeros(vocab_size, np.bool_)
        allowed[: len(flags)] = flags[:vocab_size]
        return allowed


EVERY_TOKEN = AllowedTokens(np.zeros((0, 0), np.uint32), NO_IDS)


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What the rows became.

    token_ids  [num_rows] int32, -1 for a row whose logits are not all finite
    logprobs   of each row; None where its params do not ask for them or it has no token
    """

    token_ids: NDArray[np.int32]
    logprobs: list[TokenLogprobs | None]


class SeenTokens:
    """The different ids in one request's prompt and output, and how often each is in the output: what its
    penalties apply to. It grows with the request, so that a step costs what the step adds.
    """

    def __init__(self, prompt_ids: NDArray[np.int32]) -> None:
        self.num_read = len(prompt_ids)  # tokens of the request, from position 0
        self._ids = np.unique(prompt_ids)
        self._counts = np.zeros(len(self._ids), np.int32)
        self._places = {token_id: place for place, token_id in enumerate(self._ids.tolist())}

    @property
    def ids(self) -> NDArray[np.int32]:
        """[num_seen] int32"""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int32]:
        """[num_seen] int32"""
        return self._counts[: len(self._places)]

    def extend(self, output_ids: NDArray[np.int32]) -> None:
        """Count the request's next tokens, all of its output."""
        for token_id in output_ids.tolist():
            place = self._places.setdefault(token_id, len(self._places))
            if place == len(self._ids):
                self._ids, self._counts = (
                    np.concatenate([each, np.zeros(len(each) + 16, np.int32)])
                    for each in (self._ids, self._counts)
                )
            self._ids[place] = token_id
            self._counts[place] += 1
        self.num_read += len(output_ids)


def has_penalties(params: SamplingParams) -> bool:
    """Whether a row's logits depend on the tokens before it."""
    return (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0, 0, 1)


def row_sampling(
    params: SamplingParams, number: float, output_len: int, ending_ids: Collection[int]
) -> RowSampling:
    """What `sampling.sampler.sample` is told of a row, but for the tokens before it."""
    if output_len < params.min_tokens:
        return RowSampling(params, number, {**params.logit_bias, **dict.fromkeys(ending_ids, -np.inf)})
    return RowSampling(params, number, params.logit_bias)


def step_sampling(rows: Sequence[RowSampling]) -> StepSampling:
    """The rows' settings as arrays."""
    settings = np.array([_settings(row.params) for row in rows], np.float64).reshape(-1, NUM_SETTINGS)
    return StepSampling(
        temperatures=settings[:, 0].astype(np.float32),
        top_ks=settings[:, 1].astype(np.int32),
        top_ps=settings[:, 2].astype(np.float32),
        min_ps=settings[:, 3].astype(np.float32),
        numbers=np.array([row.number for row in rows], np.float64),
        added_starts=_starts([len(row.added) for row in rows]),
        added_ids=np.array([token_id for row in rows for token_id in row.added], np.int32),
        added_values=np.array([value for row in rows for value in row.added.values()], np.float32),
        penalties=settings[:, 4:7].copy(),
        num_logprobs=settings[:, 7].astype(np.int32),
    )


def sample_rows(
    device: "Device",
    logits: NDArray[np.float32],
    step: StepSampling,
    seen: Mapping[int, SeenTokens],
    allowed: AllowedTokens = EVERY_TOKEN,
) -> SampledRows:
    """Choose a token for every row.

    logits   [num_rows, vocab_size] float32, overwritten
    seen     index of a row with penalties -> the tokens before it
    allowed  what rows may become; a mask must leave its row something
    Raises ValueError when the rows and the logits differ in number, or an id is outside the vocabulary.
    """
    vocab_size = logits.shape[1]
    by_row = [seen[row].ids if row in seen else NO_IDS for row in range(len(logits))] if seen else []
    token_ids, own, top_ids, top = device.sample_rows(
        logits,
        temperatures=step.temperatures,
        top_ks=np.minimum(step.top_ks, vocab_size),
        top_ps=step.top_ps,
        min_ps=step.min_ps,
        numbers=step.numbers,
        added_starts=step.added_starts,
        added_ids=step.added_ids,
        added_values=step.added_values,
        penalties=step.penalties,
        seen_starts=_starts([len(ids) for ids in by_row]) if seen else np.zeros(len(logits) + 1, np.int32),
        seen_ids=np.concatenate(by_row) if seen else NO_IDS,
        seen_counts=np.concatenate([seen[row].counts for row in sorted(seen)]) if seen else NO_IDS,
        num_logprobs=np.minimum(step.num_logprobs, vocab_size),
        masks=allowed.masks,
        mask_rows=allowed.mask_rows,
    )
    has_logprobs = (step.num_logprobs != NO_LOGPROBS) & (token_ids >= 0)
    return SampledRows(token_ids, _row_logprobs(has_logprobs, step.num_logprobs, own, top_ids, top))


def score_rows(
    device: "Device",
    logits: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    num_logprobs: NDArray[np.int32],
) -> list[TokenLogprobs | None]:
    """Logprobs of a given token in every row; None for a row whose logits are not all finite.

    logits        [num_rows, vocab_size] float32
    token_ids     [num_rows] int32
    num_logprobs  [num_rows] int32, of the most probable tokens beside it
    Raises ValueError when the arrays differ in length, or an id is outside the vocabulary.
    """
    own, top_ids, top = device.score_rows(
        logits, token_ids=token_ids, num_logprobs=np.minimum(num_logprobs, logits.shape[1])
    )
    return _row_logprobs(~np.isnan(own), num_logprobs, own, top_ids, top)


def _settings(params: SamplingParams) -> tuple[float, ...]:
    """NUM_SETTINGS numbers, in the order in which step_sampling() takes them apart."""
    return (
        0 if params.is_greedy else params.temperature,
        min(max(params.top_k, 0), MAX_INT32),
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        NO_LOGPROBS if params.logprobs is None else params.logprobs,
    )


def _row_logprobs(
    has_logprobs: NDArray[np.bool_],
    num_logprobs: NDArray[np.int32],
    own: NDArray[np.float64],
    top_ids: NDArray[np.int32],
    top: NDArray[np.float64],
) -> list[TokenLogprobs | None]:
    """What a native call gave, of the rows that have any; one wants no more of the others than there are."""
    logprobs: list[TokenLogprobs | None] = [None] * len(own)
    for row in np.flatnonzero(has_logprobs).tolist():
        num_top = num_logprobs[row]
        logprobs[row] = TokenLogprobs(
            float(own[row]), tuple(top_ids[row, :num_top].tolist()), tuple(top[row, :num_top].tolist())
        )
    return logprobs


def _starts(lengths: list[int]) -> NDArray[np.int32]:
    """Where each row's entries begin when all stand one after the other, and where the last ones end."""
    return np.array(list(accumulate(lengths, initial=0)), np.int32)
