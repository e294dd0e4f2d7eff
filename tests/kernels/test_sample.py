"""The sampler draws from the distribution that the settings leave, on rows as long as a vocabulary."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from legato.core.sampling_params import SamplingParams
from legato.kernels.sampling import RowSampling, sample_rows, step_sampling
from legato.sampling.sampler import draw, kept_tokens, relative_probabilities

if TYPE_CHECKING:
    from legato.kernels._native import Device

VOCAB = 49_152


def sampled(device: "Device", logits: np.ndarray, numbers: np.ndarray, **settings: Any) -> np.ndarray:
    """One row of logits, drawn from once for each number."""
    params = SamplingParams(**settings)
    rows = [RowSampling(params, float(number), {}) for number in numbers]
    return sample_rows(device, np.tile(logits, (len(rows), 1)), step_sampling(rows), {}).token_ids


def sampled_by_numpy(logits: np.ndarray, numbers: np.ndarray, **settings: Any) -> np.ndarray:
    params = SamplingParams(**settings)
    weights = relative_probabilities(logits, params.temperature)
    kept = kept_tokens(weights, params)
    ids = np.arange(len(logits)) if kept is None else kept
    return np.array([ids[draw(weights[ids], number)] for number in numbers])


def peaked(rng: np.random.Generator) -> np.ndarray:
    """Like a language model's: a few tokens hold most, and the rest has a long tail."""
    logits = -1.4 * np.log(np.arange(1, VOCAB + 1)) + rng.standard_normal(VOCAB)
    return rng.permutation(logits).astype(np.float32)


def flat(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(VOCAB, dtype=np.float32) / 10


def of_few_values(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 8, VOCAB).astype(np.float32)


def far_apart(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.linspace(-3e4, 0, VOCAB)).astype(np.float32)


@pytest.mark.parametrize("make_logits", [peaked, flat, of_few_values, far_apart])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_p": 0.999999},
        {"top_p": 1e-6},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 10_000, "top_p": 0.5},
        {"min_p": 0.01, "top_p": 0.8},
        {"temperature": 2, "min_p": 1},
    ],
    ids=str,
)
def test_draws_what_numpy_draws(device: "Device", make_logits: Any, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    logits, numbers = make_logits(rng), rng.random(8)
    found = sampled(device, logits, numbers, **settings)
    assert found.tolist() == sampled_by_numpy(logits, numbers, **settings).tolist()


@pytest.mark.parametrize("vocab", [1, 2, 7, 33, 255, 257, 1000])
def test_rows_shorter_than_a_vector_or_a_block(device: "Device", vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits, numbers = 2 * rng.standard_normal(vocab, dtype=np.float32), rng.random(50)
    for settings in ({}, {"top_p": 0.6}, {"top_k": 3}, {"temperature": 0}):
        wanted = (
            sampled_by_numpy(logits, numbers, **settings)
            if settings != {"temperature": 0}
            else logits.argmax()
        )
        assert (sampled(device, logits, numbers, **settings) == wanted).all()


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, {2}), (2, {2, 1}), (3, {2, 1, 4}), (4, {2, 1, 4, 5}), (5, {0, 1, 2, 4, 5})]
)
def test_of_equal_tokens_at_the_edge_the_first_stay(device: "Device", top_k: int, kept: set[int]) -> None:
    logits = np.array([1, 2, 3, 0, 2, 2, 0], np.float32)
    assert set(sampled(device, logits, (np.arange(500) + 0.5) / 500, top_k=top_k).tolist()) == kept


def test_the_largest_logit_with_the_lowest_id_is_the_greedy_token(device: "Device") -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[40_007, 123, 5_000]] = 7
    assert sampled(device, logits, np.array([0.5]), temperature=0).tolist() == [123]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_p": 0.8}, {"top_k": 9}])
def test_tokens_are_drawn_as_often_as_they_are_probable(device: "Device", settings: dict[str, Any]) -> None:
    logits, num_draws = np.linspace(-2, 2, 12, dtype=np.float32), 20_000
    params = SamplingParams(**settings)
    weights = relative_probabilities(logits, params.temperature).astype(np.float64)
    kept = kept_tokens(weights, params)
    ids = np.arange(12) if kept is None else kept
    expected = num_draws * weights[ids] / weights[ids].sum()

    numbers = np.random.default_rng(0).random(num_draws)
    counts = np.bincount(sampled(device, logits, numbers, **settings), minlength=12)

    assert counts.sum() == counts[ids].sum()
    chi_square = ((counts[ids] - expected) ** 2 / expected).sum()
    assert chi_square < 31.3  # 0.1 % of fair draws with 11 degrees of freedom lie above
