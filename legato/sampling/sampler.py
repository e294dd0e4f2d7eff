"""From one row of logits to one token: a pure function, so a batch cannot change an answer.

The order, with vLLM's meanings:
0. a grammar forbids what it does not allow, whatever comes after;
1. logit_bias, added to the logits as the model gave them, so that +-100 forces or forbids;
2. repetition_penalty over prompt and output, then frequency and presence penalties over the output alone;
3. min_tokens, which forbids the ids that end the request, whatever came before;
4. greedy: the largest logit; of equal ones the lowest id. Otherwise
5. temperature; then what may be drawn: min_p and top_k first, which look at single tokens, then top_p, whose
   share is of the mass that they leave;
6. a draw from what remains, by the random number of (seed, position).

Logprobs are taken before all of that: they say what the model thinks, whatever was done to its choice.
"""

from collections.abc import Collection

import numpy as np

from legato.core.errors import NonFiniteLogitsError
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import SamplingParams
from legato.sampling.random_numbers import uniform


def sample(
    logits: np.ndarray,
    *,
    params: SamplingParams,
    seed: int,
    position: int,
    prompt_ids: np.ndarray,
    output_ids: np.ndarray,
    ending_ids: Collection[int],
    allowed: np.ndarray | None = None,
) -> int:
    """Choose the token that will stand at `position` of its request.

    logits      [vocab_size] float32; not changed
    prompt_ids  [prompt_len] int32
    output_ids  [output_len] int32: the tokens sampled so far
    ending_ids  kept from being chosen while output_len < min_tokens
    allowed     [vocab_size] bool: what a grammar leaves to choose from; None: every token
    Raises NonFiniteLogitsError when the model gave NaN or infinity.
    """
    if not np.isfinite(logits).all():
        raise NonFiniteLogitsError("logits that are not finite numbers choose no token")
    if allowed is not None:
        logits = np.where(allowed, logits, np.float32(-np.inf))
    logits = adjust_logits(logits, params, prompt_ids, output_ids, ending_ids)
    if params.is_greedy:
        return int(logits.argmax())
    weights = relative_probabilities(logits, params.temperature)
    candidates = kept_tokens(weights, params)
    if candidates is None:
        return draw(weights, uniform(seed, position))
    return int(candidates[draw(weights[candidates], uniform(seed, position))])


def token_logprobs(logits: np.ndarray, token_id: int, num_top: int) -> TokenLogprobs:
    """Those of `token_id` and of the num_top most probable tokens, by the logits as the model gave them."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    top_ids = np.argsort(-wide, kind="stable")[:num_top]
    return TokenLogprobs(
        float(logprobs[token_id]), tuple(top_ids.tolist()), tuple(logprobs[top_ids].tolist())
    )


def adjust_logits(
    logits: np.ndarray,
    params: SamplingParams,
    prompt_ids: np.ndarray,
    output_ids: np.ndarray,
    ending_ids: Collection[int],
) -> np.ndarray:
    """Steps 1 to 3; the array itself when there is nothing to change."""
    has_penalty = params.presence_penalty != 0 or params.frequency_penalty != 0
    forbids_end = len(output_ids) < params.min_tokens and len(ending_ids) > 0
    if not (params.logit_bias or params.repetition_penalty != 1 or has_penalty or forbids_end):
        return logits
    logits = logits.copy()
    if params.logit_bias:
        logits[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), np.float32)
    if params.repetition_penalty != 1:
        seen = np.union1d(prompt_ids, output_ids)
        factor = np.float32(params.repetition_penalty)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    if has_penalty:
        ids, counts = np.unique(output_ids, return_counts=True)
        penalties = params.frequency_penalty * counts + params.presence_penalty
        logits[ids] -= penalties.astype(np.float32)
    if forbids_end:
        logits[list(ending_ids)] = -np.inf
    return logits


def relative_probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities at `temperature` in units of the largest one, [vocab_size] float32: the largest is 1."""
    with np.errstate(over="ignore"):  # far below the largest at a tiny temperature: exp gives 0
        weights: np.ndarray = np.exp((logits - logits.max()) / np.float32(temperature))
    return weights


def kept_tokens(weights: np.ndarray, params: SamplingParams) -> np.ndarray | None:
    """Ids that min_p, top_k and top_p leave, ascending; None when they leave all. Never empty.

    Each setting keeps the heaviest, so the set of weights is shrunk and the ids are looked up at the
    end; of tokens with equal weights at the edge, those with lower ids stay.
    """
    top_k = params.top_k if 0 < params.top_k < len(weights) else len(weights)
    if top_k == len(weights) and params.min_p == 0 and params.top_p == 1:
        return None
    kept = weights
    if params.min_p > 0:
        kept = kept[kept >= np.float32(params.min_p)]
    if top_k < len(kept):
        kept = np.partition(kept, -top_k)[-top_k:]
    if params.top_p < 1:
        kept = nucleus(kept, params.top_p)
    edge = kept.min()
    heavier, equal = np.flatnonzero(weights > edge), np.flatnonzero(weights == edge)
    return np.sort(np.concatenate([heavier, equal[: len(kept) - len(heavier)]]))


def nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The fewest weights that hold at least top_p of all, heaviest first."""
    total = weights.sum(dtype=np.float64)
    # Weights below this floor hold less than 1 - top_p together, so the nucleus lies above: sort no others.
    floor = min(
        (1 - top_p) * total / len(weights), weights.max()
    )  # rounding must not lift it over all of them
    descending = np.sort(weights[weights >= floor])[::-1]
    mass = np.cumsum(descending, dtype=np.float64)
    return descending[: np.searchsorted(mass, top_p * total) + 1]


def draw(weights: np.ndarray, number: float) -> int:
    """Index of the token at `number`, in (0, 1), of the cumulated weights; one of weight 0 is never drawn."""
    mass = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(mass, number * mass[-1]))
