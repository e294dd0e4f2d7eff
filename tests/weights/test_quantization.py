"""Float weights to 8 and 4 bits: how exact, what stays, and what is refused."""

import logging

import numpy as np
import pytest

from legato.backends.stored_weight import StoredWeight, as_stored, stored_bytes, to_bfloat16
from legato.core.errors import ModelError
from legato.weights.quantization import CHUNK_GROUPS, int4_groups, quantize, quantize_weights
from tests.quantized import as_q4

FORMATS = {"int8": "q8", "int4": "q4"}
both = pytest.mark.parametrize("quantization", FORMATS)


def normal(outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((outputs, inputs), dtype=np.float32)


def squared_errors(weight: StoredWeight, values: np.ndarray) -> np.ndarray:
    """Of each group of 32."""
    return ((weight.float32() - values) ** 2).reshape(-1, 32).sum(axis=-1)


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.007), ("int4", 0.08)])
def test_normal_weights_are_off_by_less_than_is_documented(quantization: str, most: float) -> None:
    values = normal(96, 576)
    found = quantize(as_stored(values), quantization)
    assert (found.format, found.shape) == (FORMATS[quantization], (96, 576))
    assert np.linalg.norm(found.float32() - values) <= most * np.linalg.norm(values)


def test_no_int8_value_is_off_by_more_than_half_a_step() -> None:
    values = normal(8, 64)
    found = quantize(as_stored(values), "int8")
    assert found.scales is not None
    steps = np.repeat(found.scales, 32, axis=-1)
    assert (np.abs(found.float32() - values) <= 0.57 * steps).all()  # a scale is rounded to a half


def test_int4_levels_fit_better_than_those_of_the_range_alone() -> None:
    values = normal(64, 512)
    found, plain = quantize(as_stored(values), "int4"), as_q4(values)
    assert squared_errors(found, values).sum() < 0.87 * squared_errors(plain, values).sum()


@both
@pytest.mark.parametrize("kept", ["f32", "bf16", "f16"])
def test_every_float_format_is_quantised_by_its_values(kept: str, quantization: str) -> None:
    values = to_bfloat16(normal(4, 64)) & 0xFFF0  # few bits, so that each format holds them exactly
    exact = StoredWeight("bf16", values.shape, values)
    floats = exact.float32()
    same = {
        "f32": as_stored(floats),
        "bf16": exact,
        "f16": StoredWeight("f16", floats.shape, floats.astype(np.float16).view(np.uint16)),
    }
    found, expected = quantize(same[kept], quantization), quantize(exact, quantization)
    assert np.array_equal(found.values, expected.values)
    assert np.array_equal(found.scales, expected.scales)


@both
def test_what_was_decoded_from_halves_comes_back_unchanged(quantization: str) -> None:
    """Also across the edge of a chunk: it is groups alone that are rounded together."""
    once = quantize(as_stored(normal(CHUNK_GROUPS // 8 + 3, 256)), quantization)
    again = quantize(as_stored(once.float32()), quantization)
    largest = np.abs(once.float32()).max()
    assert np.abs(again.float32() - once.float32()).max() <= 2e-3 * largest
    assert np.mean(again.values == once.values) > 0.99


@both
def test_scales_and_minimums_are_halves(quantization: str) -> None:
    found = quantize(as_stored(normal(5, 96)), quantization)
    for array in (found.scales, found.minimums):
        assert array is None or np.array_equal(array, array.astype(np.float16).astype(np.float32))


@both
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_group_of_one_value_is_exact(value: float, quantization: str) -> None:
    values = np.full((2, 32), value, np.float32)
    assert np.allclose(quantize(as_stored(values), quantization).float32(), values, rtol=5e-4)


def test_int4_group_of_two_values_is_exact() -> None:
    x = np.where(np.arange(32) % 5 == 0, np.float32(-0.5), np.float32(0.25))[:, None]
    scales, minimums, q = int4_groups(x)
    assert np.allclose(q * scales + minimums, x, atol=1e-3)


def test_vectors_and_what_is_quantised_already_stay() -> None:
    weights = {"norm": as_stored(np.ones(64, np.float32)), "q_proj": as_q4(normal(4, 64))}
    found = quantize_weights(weights, "int8")
    assert all(found[name] is weights[name] for name in weights)


@both
def test_bytes_are_those_that_are_kept(quantization: str) -> None:
    weights = {
        "embed_tokens": as_stored(normal(4, 64)),
        "layers.0.q_proj": as_stored(normal(4, 64)),
        "layers.0.k_proj": as_q4(normal(4, 64)),
        "layers.0.input_norm": as_stored(np.ones(64, np.float32)),
    }
    group_bytes = {"int8": 32 + 2, "int4": 16 + 2 + 2}[quantization]
    kept = 8 * 34 + 8 * group_bytes + weights["layers.0.k_proj"].num_bytes + 64 * 4
    assert stored_bytes(quantize_weights(weights, quantization)) == kept


@both
def test_nothing_left_to_quantise_is_told_with_what_the_weights_are(
    quantization: str, caplog: pytest.LogCaptureFixture
) -> None:
    weights = {
        "norm": as_stored(np.ones(64, np.float32)),
        "embed_tokens": quantize(as_stored(normal(4, 64)), "int8"),
        "layers.0.q_proj": as_q4(normal(4, 64)),
    }
    quantize_weights(weights, quantization)
    [record] = caplog.records
    assert record.getMessage() == (
        f"--quantization {quantization} changes nothing:"
        " the model's file holds every matrix quantised already (Q4, Q8)"
    )


def test_none_changes_nothing() -> None:
    weights = {"q_proj": as_stored(normal(4, 64))}
    assert quantize_weights(weights, "none") is weights


def test_embeddings_and_head_keep_8_bits() -> None:
    weights = {name: as_stored(normal(4, 64)) for name in ("embed_tokens", "layers.0.q_proj", "lm_head")}
    found = quantize_weights(weights, "int4")
    assert [found[name].format for name in weights] == ["q8", "q4", "q8"]


def test_inputs_that_are_no_whole_groups_stay_floats_and_the_log_says_which(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weights = {
        f"layers.{i}.{kind}": as_stored(normal(4, 48)) for i in (0, 1) for kind in ("up_proj", "q_proj")
    }
    weights["layers.0.down_proj"] = as_stored(normal(4, 64))
    with caplog.at_level(logging.WARNING):
        found = quantize_weights(weights, "int8")
    assert [each.format for each in found.values()] == ["f32", "f32", "f32", "f32", "q8"]
    [record] = caplog.records
    assert (
        record.getMessage()
        == "--quantization int8 leaves q_proj, up_proj floats: their inputs are no multiple of 32"
    )


@both
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_number_that_no_half_holds_is_refused_with_the_weight(bad: float, quantization: str) -> None:
    values = normal(4, 64)
    values[3, 40] = bad
    with pytest.raises(ModelError, match=r"weight 'layers\.1\.up_proj' cannot be quantised: .* not finite"):
        quantize_weights({"layers.1.up_proj": as_stored(values)}, quantization)["layers.1.up_proj"]
