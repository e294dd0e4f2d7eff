"""Operations on shapes drawn at random: near numpy and, under `make sanitize`, within their memory."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.backends.reference import ACTIVATIONS, layer_norm, rms_norm
from legato.core.sampling_params import SamplingParams
from legato.kernels.library import instruction_sets
from legato.kernels.sampling import RowSampling, sample_rows, step_sampling
from legato.program.ops import Activation
from legato.sampling.sampler import token_logprobs
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import EPS, apply, random_rows, relative_error
from tests.kernels.test_linear import FLOATS, QUANTISED, as_multiplied, matrix

if TYPE_CHECKING:
    from legato.kernels._native import Device, Tape, WeightFormat

every_isa = pytest.mark.parametrize("isa", instruction_sets() or ["none"])
fuzz = settings(max_examples=40, deadline=None)

Record = Callable[["Tape", int], int]


@cache
def device_of(isa: str) -> "Device":
    return open_or_fail(2, isa)


@every_isa
@fuzz
@given(num_rows=st.integers(1, 9), head_dim=st.integers(1, 130), num_heads=st.integers(1, 5))
def test_norms(isa: str, num_rows: int, head_dim: int, num_heads: int) -> None:
    width = head_dim * num_heads
    x, weight, bias = random_rows(num_rows, width), random_rows(1, width, 1)[0], random_rows(1, width, 2)[0]
    head = weight[:head_dim]

    def in_place(tape: "Tape", value: int) -> int:
        tape.rms_norm_heads(value, 0, num_heads, head, EPS)
        return value

    cases: list[tuple[Record, np.ndarray]] = [
        (lambda tape, value: tape.rms_norm(value, weight, EPS), rms_norm(x, weight, EPS)),
        (lambda tape, value: tape.rms_norm(value, head, EPS), rms_norm(x, head, EPS)),
        (in_place, rms_norm(x, head, EPS)),
        (lambda tape, value: tape.layer_norm(value, weight, bias, EPS), layer_norm(x, weight, bias, EPS)),
    ]
    for record, wanted in cases:
        np.testing.assert_allclose(apply(device_of(isa), x, record), wanted, rtol=1e-4, atol=1e-4)


@every_isa
@fuzz
@given(num_rows=st.integers(1, 9), width=st.integers(1, 200), function=st.sampled_from(Activation))
def test_activations_and_sums(isa: str, num_rows: int, width: int, function: Activation) -> None:
    x, up = random_rows(num_rows, width), random_rows(num_rows, width, seed=1)
    wanted, gate_up = ACTIVATIONS[function](x), np.concatenate([x, up], axis=1)
    cases: list[tuple[np.ndarray, Record, np.ndarray]] = [
        (x, lambda tape, value: tape.activate(value, function.value, is_gated=False), wanted),
        (gate_up, lambda tape, value: tape.activate(value, function.value, is_gated=True), wanted * up),
        (x, lambda tape, value: tape.add(value, value), x + x),
    ]
    for rows, record, expected in cases:
        np.testing.assert_allclose(apply(device_of(isa), rows, record), expected, rtol=1e-5, atol=1e-6)


@every_isa
@fuzz
@given(
    weight_format=st.sampled_from([*FLOATS, *QUANTISED]),
    num_rows=st.integers(1, 14),
    outputs=st.integers(1, 150),
    num_groups=st.integers(1, 5),
    num_left=st.integers(0, 31),
    is_added=st.booleans(),
)
def test_products_with_a_bias(
    isa: str,
    weight_format: "WeightFormat",
    num_rows: int,
    outputs: int,
    num_groups: int,
    num_left: int,
    is_added: bool,
) -> None:
    inputs = 32 * num_groups + (num_left if weight_format in FLOATS else 0)
    device, x, bias = device_of(isa), random_rows(num_rows, inputs), random_rows(1, outputs, seed=1)[0]
    weight, before = matrix(weight_format, outputs, inputs), matrix("f32", outputs, inputs)

    def record(tape: "Tape", value: int) -> int:
        if not is_added:
            return tape.linear(value, weight.packed(device), bias)
        into = tape.linear(value, before.packed(device))
        tape.add_linear(into, value, weight.packed(device), bias)
        return into

    wanted = as_multiplied(x, weight_format, isa) @ weight.exact.T + bias
    if is_added:
        wanted += x @ before.exact.T
    assert relative_error(apply(device, x, record), wanted) < 1e-5


@every_isa
@fuzz
@given(
    num_rows=st.integers(1, 5), vocab=st.integers(1, 700), num_top=st.integers(0, 20), top_k=st.integers(0, 9)
)
def test_sampling_with_logprobs(isa: str, num_rows: int, vocab: int, num_top: int, top_k: int) -> None:
    logits = np.round(random_rows(num_rows, vocab), 1)  # with equals
    rows = [RowSampling(SamplingParams(logprobs=num_top, top_k=top_k), 0.7, {})] * num_rows
    sampled = sample_rows(device_of(isa), logits.copy(), step_sampling(rows), {})
    for row, token_id, found in zip(logits, sampled.token_ids.tolist(), sampled.logprobs, strict=True):
        wanted = token_logprobs(row, token_id, num_top)
        assert found is not None
        assert found.top_ids == wanted.top_ids
        assert (found.logprob, *found.top_logprobs) == pytest.approx(
            (wanted.logprob, *wanted.top_logprobs), abs=1e-6
        )
