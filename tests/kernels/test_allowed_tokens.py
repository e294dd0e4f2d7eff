"""A row's mask forbids what it leaves out, on every instruction set, and touches no other row."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.core.sampling_params import SamplingParams
from legato.kernels.sampling import AllowedTokens, RowSampling, row_sampling, sample_rows, step_sampling
from legato.sampling.random_numbers import uniform
from legato.sampling.sampler import sample, token_logprobs
from tests.kernels.tapes import int32

if TYPE_CHECKING:
    from legato.kernels._native import Device

VOCAB = 1000
NUM_WORDS = 30  # of 32 tokens: the mask ends before the vocabulary does
SETTINGS = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1, "min_p": 0.2},
    {"temperature": 2, "top_k": 40, "top_p": 0.9},
    {"temperature": 1, "logit_bias": {3: 100.0, 999: 100.0}, "logprobs": 3},
    {"temperature": 0, "logit_bias": {700: -100.0}, "min_tokens": 9, "logprobs": 0},
]


def masks_of(num_masks: int, share: float, seed: int = 0) -> np.ndarray:
    """Random masks that each allow about this share of the tokens, 700 always."""
    flags = np.random.default_rng(seed).random((num_masks, NUM_WORDS * 32)) < share
    flags[:, 700] = True
    return np.packbits(flags, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def logits_of(seed: int) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal((len(SETTINGS), VOCAB), dtype=np.float32)


def rows_of(number: float) -> list[RowSampling]:
    return [row_sampling(SamplingParams(**each), number, 0, (7, 11)) for each in SETTINGS]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("position", range(4))
def test_chooses_what_numpy_chooses_and_reports_the_logprobs_of_the_model(
    device: "Device", position: int, share: float
) -> None:
    logits, masks = logits_of(position), masks_of(len(SETTINGS), share, seed=position)
    allowed = AllowedTokens(masks, np.arange(len(SETTINGS), dtype=np.int32))
    wanted = [
        sample(
            row,
            params=SamplingParams(**settings),
            seed=4,
            position=position,
            prompt_ids=int32(),
            output_ids=int32(),
            ending_ids=(7, 11),
            allowed=allowed.of_row(index, VOCAB),
        )
        for index, (row, settings) in enumerate(zip(logits, SETTINGS, strict=True))
    ]
    found = sample_rows(device, logits.copy(), step_sampling(rows_of(uniform(4, position))), {}, allowed)

    assert found.token_ids.tolist() == wanted
    for index, token_id in enumerate(wanted):
        assert allowed.of_row(index, VOCAB)[token_id]
    for index in (6, 7):
        own = token_logprobs(logits[index], wanted[index], SETTINGS[index]["logprobs"])
        assert found.logprobs[index].logprob == pytest.approx(own.logprob, abs=1e-5)
        assert found.logprobs[index].top_ids == own.top_ids


def test_the_only_token_left_is_chosen_against_every_setting(device: "Device") -> None:
    masks = masks_of(1, share=0.0)
    allowed = AllowedTokens(masks, np.zeros(len(SETTINGS), np.int32))
    found = sample_rows(device, logits_of(0), step_sampling(rows_of(0.5)), {}, allowed)
    assert found.token_ids.tolist() == [700] * len(SETTINGS)


def test_a_row_without_a_mask_has_the_token_that_it_has_without_neighbours(device: "Device") -> None:
    free = sample_rows(device, logits_of(1), step_sampling(rows_of(0.3)), {}).token_ids.tolist()
    mask_rows = int32(*[0 if index % 2 else -1 for index in range(len(SETTINGS))])
    mixed = sample_rows(
        device,
        logits_of(1),
        step_sampling(rows_of(0.3)),
        {},
        AllowedTokens(masks_of(1, share=0.0), mask_rows),
    ).token_ids.tolist()
    assert mixed[::2] == free[::2]
    assert mixed[1::2] == [700] * (len(SETTINGS) // 2)


def test_masks_that_are_not_there_are_refused(device: "Device") -> None:
    rows = step_sampling(rows_of(0.3))
    with pytest.raises(ValueError, match="more masks than the 1"):
        sample_rows(
            device, logits_of(1), rows, {}, AllowedTokens(masks_of(1, 0.5), int32(*range(len(SETTINGS))))
        )
    with pytest.raises(ValueError, match="mask_rows"):
        sample_rows(device, logits_of(1), rows, {}, AllowedTokens(masks_of(1, 0.5), int32(0)))
