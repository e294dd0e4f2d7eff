"""One native call that samples every row of a step, with the meanings and the order of `sampling.sampler`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from legato.kernels._native import Device

NO_IDS: NDArray[np.int32] = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row of logits becomes a token.

    number       uniform in (0, 1), of the request's seed and the token's position
    added        token id -> added to its logit; -inf forbids the token, whatever else is said of it
    seen_ids     [num_seen] int32, the different ids of prompt and output: what penalties apply to
    seen_counts  [num_seen] int32, how often each is in the output
    """

    params: SamplingParams
    number: float
    added: Mapping[int, float]
    seen_ids: NDArray[np.int32] = field(default_factory=lambda: NO_IDS)
    seen_counts: NDArray[np.int32] = field(default_factory=lambda: NO_IDS)


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What the rows became.

    token_ids  [num_rows] int32, -1 for a row whose logits are not all finite
    logprobs   of each row; None where its params do not ask for them or it has no token
    """

    token_ids: NDArray[np.int32]
    logprobs: list[TokenLogprobs | None]


def row_sampling(
    params: SamplingParams,
    number: float,
    prompt_ids: NDArray[np.int32],
    output_ids: NDArray[np.int32],
    ending_ids: Collection[int],
) -> RowSampling:
    """What `sampling.sampler.sample` is told of a row, as the lists that the native call reads."""
    added: Mapping[int, float] = params.logit_bias
    if len(output_ids) < params.min_tokens:
        added = {**added, **dict.fromkeys(ending_ids, -np.inf)}
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    if penalties == (0, 0, 1):
        return RowSampling(params, number, added)
    seen_ids, places = np.unique(np.concatenate([prompt_ids, output_ids]), return_inverse=True)
    counts = np.bincount(places[len(prompt_ids) :], minlength=len(seen_ids))
    return RowSampling(params, number, added, seen_ids, counts.astype(np.int32))


def sample_rows(device: "Device", logits: NDArray[np.float32], rows: Sequence[RowSampling]) -> SampledRows:
    """Choose a token for every row.

    logits  [num_rows, vocab_size] float32, overwritten
    Raises ValueError when the rows and the logits differ in number, or an id is outside the vocabulary.
    """
    params = [row.params for row in rows]
    num_logprobs = [-1 if each.logprobs is None else min(each.logprobs, logits.shape[1]) for each in params]
    token_ids, own, top_ids, top = device.sample_rows(
        logits,
        temperatures=np.array([0 if each.is_greedy else each.temperature for each in params], np.float32),
        top_ks=np.array([min(max(each.top_k, 0), logits.shape[1]) for each in params], np.int32),
        top_ps=np.array([each.top_p for each in params], np.float32),
        min_ps=np.array([each.min_p for each in params], np.float32),
        numbers=np.array([row.number for row in rows], np.float64),
        added_starts=_starts([len(row.added) for row in rows]),
        added_ids=np.array([token_id for row in rows for token_id in row.added], np.int32),
        added_values=np.array([value for row in rows for value in row.added.values()], np.float32),
        penalties=np.array(
            [(each.repetition_penalty, each.frequency_penalty, each.presence_penalty) for each in params],
            np.float64,
        ).reshape(-1, 3),
        seen_starts=_starts([len(row.seen_ids) for row in rows]),
        seen_ids=np.concatenate([NO_IDS, *(row.seen_ids for row in rows)]),
        seen_counts=np.concatenate([NO_IDS, *(row.seen_counts for row in rows)]),
        num_logprobs=np.array(num_logprobs, np.int32),
    )
    logprobs = [
        TokenLogprobs(float(own[row]), tuple(top_ids[row, :n].tolist()), tuple(top[row, :n].tolist()))
        if n >= 0 and token_ids[row] >= 0
        else None
        for row, n in enumerate(num_logprobs)
    ]
    return SampledRows(token_ids, logprobs)


def _starts(lengths: list[int]) -> NDArray[np.int32]:
    """Where each row's entries begin when all stand one after the other, and where the last ones end."""
    return np.cumsum([0, *lengths], dtype=np.int32)
