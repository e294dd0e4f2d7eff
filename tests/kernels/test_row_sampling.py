"""One native call chooses the same tokens as the sampler in numpy, row by row."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from legato.core.sampling_params import SamplingParams
from legato.kernels.sampling import (
    NO_IDS,
    RowSampling,
    SeenTokens,
    has_penalties,
    row_sampling,
    sample_rows,
    step_sampling,
)
from legato.sampling.random_numbers import uniform
from legato.sampling.sampler import sample
from tests.kernels.tapes import int32

if TYPE_CHECKING:
    from legato.kernels._native import Device

VOCAB = 1000
PROMPT, OUTPUT, ENDING = int32(5, 17, 5, 900), int32(17, 3, 17, 17, 999), (7, 11)
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.3},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1, "min_p": 0.2},
    {"temperature": 2, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1, "top_k": VOCAB + 1},
    {"temperature": 1, "top_k": 2**40},
    {"temperature": 0, "logit_bias": {3: 100.0}},
    {"temperature": 0, "logit_bias": {3: 100.0, 7: 50.0}, "min_tokens": 9, "repetition_penalty": 1.3},
    {"temperature": 1, "frequency_penalty": 1.5, "presence_penalty": -0.5},
    {"temperature": 1, "repetition_penalty": 0.7, "presence_penalty": 2, "top_p": 0.95},
]


def logits_of(num_rows: int, seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal((num_rows, VOCAB), dtype=np.float32)


def rows_of(number: float, *settings: dict[str, Any]) -> list[RowSampling]:
    return [row_sampling(SamplingParams(**each), number, len(OUTPUT), ENDING) for each in settings]


def tokens_of(device: "Device", logits: np.ndarray, rows: list[RowSampling]) -> list[int]:
    """What the rows become, each after PROMPT and OUTPUT."""
    seen = SeenTokens(PROMPT)
    seen.extend(OUTPUT)
    penalized = {index: seen for index, row in enumerate(rows) if has_penalties(row.params)}
    return sample_rows(device, logits, step_sampling(rows), penalized).token_ids.tolist()


@pytest.mark.parametrize("position", range(20))
def test_every_setting_chooses_what_numpy_chooses(device: "Device", position: int) -> None:
    logits = logits_of(len(SETTINGS), seed=position)
    wanted = [
        sample(
            row,
            params=SamplingParams(**settings),
            seed=4,
            position=position,
            prompt_ids=PROMPT,
            output_ids=OUTPUT,
            ending_ids=ENDING,
        )
        for row, settings in zip(logits, SETTINGS, strict=True)
    ]
    assert tokens_of(device, logits, rows_of(uniform(4, position), *SETTINGS)) == wanted


def test_a_row_alone_and_among_others_gets_the_same_token(device: "Device") -> None:
    logits, rows = logits_of(len(SETTINGS)), rows_of(0.4, *SETTINGS)
    together = tokens_of(device, logits.copy(), rows)
    alone = [tokens_of(device, logits[i : i + 1].copy(), rows[i : i + 1]) for i in range(len(rows))]
    assert alone == [[token_id] for token_id in together]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_k": 4}])
def test_a_row_that_is_not_finite_gets_no_token_and_harms_no_other(
    device: "Device", bad: float, settings: dict[str, Any]
) -> None:
    logits = logits_of(3)
    greedy = logits[2].argmax()
    logits[0, ENDING[0]] = logits[1, VOCAB - 1] = bad
    rows = rows_of(0.5, settings | {"min_tokens": 9}, settings, {"temperature": 0})
    assert tokens_of(device, logits, rows) == [-1, -1, greedy]


def test_a_forbidden_token_is_never_drawn(device: "Device") -> None:
    logits = np.full((200, VOCAB), -50, np.float32)
    logits[:, :2] = 50
    rows = [RowSampling(SamplingParams(), (i + 0.5) / 200, {0: -math.inf}) for i in range(200)]
    assert set(tokens_of(device, logits, rows)) == {1}


def test_no_rows_give_no_tokens(device: "Device") -> None:
    assert tokens_of(device, logits_of(0), []) == []


def test_ids_outside_the_vocabulary_are_refused(device: "Device") -> None:
    adding = step_sampling([RowSampling(SamplingParams(), 0.5, {VOCAB: 1.0})])
    with pytest.raises(ValueError, match="added_ids: 1000 is not in the vocabulary"):
        sample_rows(device, logits_of(1), adding, {})
    plain = step_sampling(rows_of(0.5, {}))
    with pytest.raises(ValueError, match="seen_ids: -1 is not in the vocab"):
        sample_rows(device, logits_of(1), plain, {0: SeenTokens(int32(-1))})


def test_rows_that_do_not_fit_the_logits_are_refused(device: "Device") -> None:
    with pytest.raises(ValueError, match="temperatures: 1 entries, must be 2"):
        sample_rows(device, logits_of(2), step_sampling(rows_of(0.5, {})), {})


def test_lists_of_a_row_that_differ_in_length_are_refused(device: "Device") -> None:
    seen = SeenTokens(int32(1))
    seen._counts = NO_IDS
    with pytest.raises(ValueError, match="seen_starts: 0 entries, must be 1"):
        sample_rows(device, logits_of(1), step_sampling(rows_of(0.5, {})), {0: seen})


def test_seen_tokens_count_the_output_as_it_grows_and_know_the_prompt() -> None:
    seen = SeenTokens(int32(7, 5, 7))
    seen.extend(int32(9, 7))
    seen.extend(int32(*range(100, 140), 9))
    assert seen.num_read == 3 + 2 + 41
    assert seen.ids.dtype == seen.counts.dtype == np.int32
    counts = dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True))
    assert counts == {5: 0, 7: 1, 9: 2} | dict.fromkeys(range(100, 140), 1)
