"""Logprobs of sampled rows: those of numpy, whatever chose the token, whoever stands beside."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import SamplingParams
from legato.kernels.sampling import (
    SeenTokens,
    has_penalties,
    row_sampling,
    sample_rows,
    score_rows,
    step_sampling,
)
from legato.sampling.sampler import token_logprobs
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import int32

if TYPE_CHECKING:
    from legato.kernels._native import Device

VOCAB = 49_152
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 0},
    {"temperature": 0, "logprobs": 1},
    {"temperature": 1, "logprobs": 20},
    {"temperature": 0.3, "top_p": 0.8, "logprobs": 5},
    {"temperature": 1},
    {"temperature": 1, "logit_bias": {3: 100.0, 4: -100.0}, "logprobs": 7},
    {"temperature": 1.5, "repetition_penalty": 1.3, "presence_penalty": 2, "top_k": 9, "logprobs": 20},
]


def sampled(
    device: "Device", logits: np.ndarray, *settings: dict[str, Any]
) -> list[tuple[int, TokenLogprobs | None]]:
    rows = [row_sampling(SamplingParams(**each), 0.4, output_len=2, ending_ids=()) for each in settings]
    seen = SeenTokens(int32(5, 17))
    seen.extend(int32(17, 3))
    penalized = {index: seen for index, row in enumerate(rows) if has_penalties(row.params)}
    found = sample_rows(device, logits.copy(), step_sampling(rows), penalized)
    return list(zip(found.token_ids.tolist(), found.logprobs, strict=True))


def logits_of(kind: str, num_rows: int, vocab: int) -> np.ndarray:
    rng = np.random.default_rng(vocab)
    if kind == "of few values":
        return rng.integers(0, 8, (num_rows, vocab)).astype(np.float32)
    if kind == "rising":  # each is among the largest until the next
        return np.tile(np.linspace(-30, 40, vocab, dtype=np.float32), (num_rows, 1))
    return 5 * rng.standard_normal((num_rows, vocab), dtype=np.float32)


@pytest.mark.parametrize("kind", ["natural", "of few values", "rising"])
@pytest.mark.parametrize("vocab", [20, 33, 1000, VOCAB])
def test_logprobs_are_those_of_numpy(device: "Device", vocab: int, kind: str) -> None:
    logits = logits_of(kind, len(SETTINGS), vocab)
    for row, settings, (token_id, found) in zip(
        logits, SETTINGS, sampled(device, logits, *SETTINGS), strict=True
    ):
        if "logprobs" not in settings:
            assert found is None
            continue
        assert found is not None
        wanted = token_logprobs(row, token_id, settings["logprobs"])
        assert found.logprob == pytest.approx(wanted.logprob, abs=1e-6)
        assert found.top_ids == wanted.top_ids
        assert found.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-6)


@pytest.mark.parametrize("vocab", [1, 2, 7])
def test_vocabulary_smaller_than_what_is_asked_for_is_given_whole(device: "Device", vocab: int) -> None:
    logits = logits_of("natural", 1, vocab) - 100
    ((_, found),) = sampled(device, logits, {"temperature": 0, "logprobs": 20, "top_k": 1})
    assert found is not None
    assert sorted(found.top_ids) == list(range(vocab))
    assert np.exp(found.top_logprobs).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_bits_of_a_row_do_not_depend_on_its_company(device: "Device", num_threads: int) -> None:
    logits = logits_of("natural", len(SETTINGS), 1000)
    together = sampled(open_or_fail(num_threads, device.isa), logits, *SETTINGS)
    alone = [sampled(device, logits[i : i + 1], each)[0] for i, each in enumerate(SETTINGS)]
    assert together == alone


def test_asking_changes_no_token(device: "Device") -> None:
    logits = logits_of("natural", len(SETTINGS), 1000)
    silent = [settings | {"logprobs": None} for settings in SETTINGS]
    assert [token_id for token_id, _ in sampled(device, logits, *SETTINGS)] == [
        token_id for token_id, _ in sampled(device, logits, *silent)
    ]


def test_row_without_a_token_has_no_logprobs(device: "Device") -> None:
    logits = logits_of("natural", 2, 1000)
    logits[0, 700] = np.nan
    (broken, none), (_, found) = sampled(device, logits, SETTINGS[2], SETTINGS[2])
    assert (broken, none) == (-1, None)
    assert found is not None
    assert len(found.top_ids) == 20


def scored(device: "Device", logits: np.ndarray, *tokens: tuple[int, int]) -> list[TokenLogprobs | None]:
    """tokens  (token id, how many of the most probable) of each row"""
    ids, num_tops = zip(*tokens, strict=True)
    return score_rows(device, logits, int32(*ids), int32(*num_tops))


@pytest.mark.parametrize("kind", ["natural", "of few values", "rising"])
@pytest.mark.parametrize("vocab", [20, 33, 1000, VOCAB])
def test_scores_are_logprobs_of_given_tokens_in_numpy(device: "Device", vocab: int, kind: str) -> None:
    logits = logits_of(kind, 4, vocab)
    tokens = [(0, 0), (vocab - 1, 1), (7, 20), (vocab // 2, 5)]
    unchanged = logits.copy()
    for row, (token_id, num_top), found in zip(logits, tokens, scored(device, logits, *tokens), strict=True):
        assert found is not None
        wanted = token_logprobs(row, token_id, num_top)
        assert found.logprob == pytest.approx(wanted.logprob, abs=1e-6)
        assert found.top_ids == wanted.top_ids
        assert found.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-6)
    np.testing.assert_array_equal(logits, unchanged)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_score_of_a_sampled_token_has_the_bits_that_sampling_gave_it(
    device: "Device", num_threads: int
) -> None:
    logits = logits_of("natural", len(SETTINGS), 1000)
    wanted = sampled(device, logits, *SETTINGS)
    tokens = [
        (token_id, settings.get("logprobs", 0))
        for (token_id, _), settings in zip(wanted, SETTINGS, strict=True)
    ]
    found = scored(open_or_fail(num_threads, device.isa), logits, *tokens)
    assert [each for each, (_, given) in zip(found, wanted, strict=True) if given] == [
        given for _, given in wanted if given
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_has_no_score_and_its_neighbours_have(device: "Device", value: float) -> None:
    logits = logits_of("natural", 3, 1000)
    whole = scored(device, logits, (1, 2), (1, 2), (1, 2))
    logits[1, 700] = value
    assert scored(device, logits, (1, 2), (1, 2), (1, 2)) == [whole[0], None, whole[2]]


def test_scores_of_a_vocabulary_smaller_than_what_is_asked_for(device: "Device") -> None:
    (found,) = scored(device, logits_of("natural", 1, 7), (6, 20))
    assert found is not None
    assert sorted(found.top_ids) == list(range(7))


@pytest.mark.parametrize("bad", [-1, 1000])
def test_token_outside_the_vocabulary_is_refused(device: "Device", bad: int) -> None:
    with pytest.raises(ValueError, match=f"token_ids: {bad} is not in the vocabulary of 1000"):
        scored(device, logits_of("natural", 2, 1000), (1, 0), (bad, 0))


def test_scores_and_rows_must_agree_in_number(device: "Device") -> None:
    logits = logits_of("natural", 2, 1000)
    with pytest.raises(ValueError, match="token_ids: 1 entries, must be 2"):
        scored(device, logits, (1, 0))
    with pytest.raises(ValueError, match="num_logprobs: -1, must be at least 0"):
        scored(device, logits, (1, 0), (1, -1))
