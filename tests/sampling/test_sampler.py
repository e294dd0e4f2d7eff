"""What each sampling setting does to one row of logits."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from legato.core.errors import NonFiniteLogitsError
from legato.core.sampling_params import SamplingParams
from legato.sampling.sampler import adjust_logits, kept_tokens, sample, token_logprobs

NO_IDS = np.zeros(0, np.int32)
# Probabilities of ids 0..4: e.g. top_p = 0.6 keeps ids 1 and 3.
PROBABILITIES = np.array([0.1, 0.4, 0.15, 0.3, 0.05])
LOGITS = np.log(PROBABILITIES).astype(np.float32)


def ids(*token_ids: int) -> np.ndarray:
    return np.array(token_ids, np.int32)


def choose(logits: np.ndarray = LOGITS, *, seed: int = 0, position: int = 0, **params: Any) -> int:
    return sample(
        logits,
        params=SamplingParams(**params),
        seed=seed,
        position=position,
        prompt_ids=NO_IDS,
        output_ids=NO_IDS,
        ending_ids=(),
    )


def counts(num_draws: int = 4000, **params: Any) -> Counter[int]:
    return Counter(choose(position=i, **params) for i in range(num_draws))


def chi_square(found: Counter[int], probabilities: dict[int, float]) -> float:
    assert set(found) <= set(probabilities)
    total = found.total()
    return sum((found[i] - total * p) ** 2 / (total * p) for i, p in probabilities.items())


def adjusted(
    logits: np.ndarray, prompt: np.ndarray, output: np.ndarray, ending: set[int] = frozenset(), **params: Any
):
    return adjust_logits(logits, SamplingParams(**params), prompt, output, ending).tolist()


# greedy


def test_greedy_takes_the_largest_logit_and_of_equal_ones_the_lowest_id() -> None:
    assert choose(temperature=0) == 1
    assert choose(np.array([0, 2, 1, 2], np.float32), temperature=0) == 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e-5, 1e-3])
def test_a_tiny_temperature_takes_the_largest_too(temperature: float) -> None:
    logits = np.array([3, 3.1, -1e30, 1e30 * 0 + 3.0], np.float32)

    assert {choose(logits, temperature=temperature, position=i) for i in range(50)} == {1}


# distribution


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    powers = PROBABILITIES ** (1 / temperature)

    found = counts(temperature=temperature)

    assert chi_square(found, dict(enumerate(powers / powers.sum()))) < 18.5  # 4 degrees, p = 0.001


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 10**9}, [0, 1, 2, 3, 4]),
        ({"top_k": -1}, [0, 1, 2, 3, 4]),
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.9}, [0, 1, 2, 3]),
        ({"min_p": 0.3}, [1, 2, 3]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 3, "top_p": 0.8}, [1, 3]),  # 0.7 of the 0.85 that top_k leaves
        ({"min_p": 0.3, "top_p": 0.8}, [1, 3]),
        ({"top_k": 4, "min_p": 0.3}, [1, 2, 3]),
        ({"temperature": 0.5, "top_p": 0.55}, [1]),  # squared: 0.16 of 0.285
    ],
)
def test_settings_keep_exactly_the_tokens_they_should(params: dict[str, Any], kept: list[int]) -> None:
    powers = PROBABILITIES ** (1 / params.get("temperature", 1.0))
    expected = {i: powers[i] / powers[kept].sum() for i in kept}

    found = counts(2000, **params)

    assert sorted(found) == kept
    assert chi_square(found, expected) < 18.5


def test_of_equal_tokens_at_the_edge_those_with_lower_ids_stay() -> None:
    level = np.zeros(8, np.float32)

    assert {choose(level, top_k=3, position=i) for i in range(200)} == {0, 1, 2}
    assert {choose(level, top_p=0.5, position=i) for i in range(200)} == {0, 1, 2, 3}


def test_the_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort() -> None:
    logits = np.random.default_rng(0).standard_normal(50_000).astype(np.float32) * 3
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities)
    nucleus = order[: np.searchsorted(np.cumsum(probabilities[order]), 0.5) + 1]

    assert {choose(logits, top_p=0.5, position=i) for i in range(300)} <= set(nucleus.tolist())
    assert (
        max(probabilities[choose(logits, top_p=0.5, position=i)] for i in range(300)) == probabilities.max()
    )


# purity


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    first = [choose(seed=5, position=i) for i in range(40)]

    assert [choose(seed=5, position=i) for i in reversed(range(40))] == first[::-1]
    assert [choose(seed=6, position=i) for i in range(40)] != first


def test_a_row_gives_the_same_token_inside_a_batch_of_rows() -> None:
    rows = np.random.default_rng(0).standard_normal((8, 1001), dtype=np.float32)

    for i, row in enumerate(rows):
        for params in ({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.1}):
            assert choose(row, position=i, **params) == choose(row.copy(), position=i, **params)


def test_the_logits_are_left_as_they_were() -> None:
    logits = LOGITS.copy()

    sample(
        logits,
        params=SamplingParams(
            logit_bias={0: 5},
            repetition_penalty=2,
            presence_penalty=1,
            min_tokens=1,
            top_p=0.5,
            temperature=0.3,
        ),
        seed=0,
        position=0,
        prompt_ids=ids(1),
        output_ids=NO_IDS,
        ending_ids={2},
    )

    np.testing.assert_array_equal(logits, LOGITS)


# bias, penalties, endings


def test_bias_is_added_to_the_logits_it_names() -> None:
    assert adjusted(ids(1, 2, 3).astype(np.float32), NO_IDS, NO_IDS, logit_bias={0: -1.5, 2: 4}) == [
        -0.5,
        2,
        7,
    ]
    assert choose(temperature=0, logit_bias={4: 100}) == 4
    assert 1 not in counts(500, logit_bias={1: -100})


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once_however_often_seen() -> None:
    logits = np.array([4, -4, 4, -4, 4], np.float32)

    assert adjusted(logits, ids(0, 1, 0), ids(2, 2), repetition_penalty=2) == [2, -8, 2, -4, 4]


def test_frequency_and_presence_penalties_count_the_output_alone() -> None:
    logits = np.zeros(4, np.float32)
    prompt, output = ids(0, 0, 0), ids(1, 1, 1, 2)

    assert adjusted(logits, prompt, output, frequency_penalty=0.5) == [0, -1.5, -0.5, 0]
    assert adjusted(logits, prompt, output, presence_penalty=0.5) == [0, -0.5, -0.5, 0]
    assert adjusted(logits, prompt, output, frequency_penalty=0.5, presence_penalty=-1) == [0, -0.5, 0.5, 0]


def test_penalties_change_nothing_before_there_is_output() -> None:
    assert adjusted(LOGITS, ids(0, 1), NO_IDS, frequency_penalty=2, presence_penalty=2) == LOGITS.tolist()


def test_bias_comes_before_the_repetition_penalty() -> None:
    assert adjusted(np.ones(1, np.float32), ids(0), NO_IDS, logit_bias={0: 3}, repetition_penalty=2) == [2]


def test_endings_are_forbidden_until_min_tokens_even_when_biased() -> None:
    def choice(output: np.ndarray) -> int:
        params = SamplingParams(temperature=0, min_tokens=2, logit_bias={4: 100})
        return sample(
            LOGITS, params=params, seed=0, position=9, prompt_ids=ids(0), output_ids=output, ending_ids={4, 1}
        )

    assert [choice(ids(*range(n))) for n in range(4)] == [3, 3, 4, 4]


# damage


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_raise_instead_of_giving_a_token(value: float, temperature: float) -> None:
    logits = LOGITS.copy()
    logits[2] = value

    with pytest.raises(NonFiniteLogitsError, match="not finite"):
        choose(logits, temperature=temperature)


def test_logits_of_any_finite_size_are_fine() -> None:
    huge = np.array([-3e38, 3e38, 0], np.float32)

    for params in ({}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}, {"temperature": 1e-5}):
        assert choose(huge, **params) == 1


@pytest.mark.parametrize(
    "params", [{"top_k": 1, "top_p": 1e-17}, {"min_p": 1.0, "top_p": 1e-20}, {"top_p": 1e-30}]
)
def test_a_share_that_rounds_to_nothing_leaves_the_best_token(params: dict[str, float]) -> None:
    weights = np.array([0.5, 1, 1, 0.25], np.float32)
    kept = kept_tokens(weights, SamplingParams(**params))
    assert kept is not None
    assert kept.tolist() == [1]


def test_logprobs_are_logarithms_of_the_models_probabilities() -> None:
    found = token_logprobs(LOGITS + 50, 2, num_top=3)
    assert found.logprob == pytest.approx(np.log(PROBABILITIES[2]), abs=1e-5)
    assert found.top_ids == (1, 3, 2)
    assert found.top_logprobs == pytest.approx(np.log([0.4, 0.3, 0.15]), abs=1e-5)


def test_of_equally_probable_tokens_the_lowest_ids_are_reported_first() -> None:
    assert token_logprobs(np.array([1, 5, 0, 5, 5], np.float32), 3, num_top=4).top_ids == (1, 3, 4, 0)


def test_own_logprob_may_be_asked_for_alone() -> None:
    found = token_logprobs(LOGITS, 4, num_top=0)
    assert (found.top_ids, found.top_logprobs) == ((), ())
    assert found.logprob == pytest.approx(np.log(0.05), abs=1e-5)
