"""Operations on single rows, of widths that fill no vector and of numbers at the edges."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.backends.reference import ACTIVATIONS, layer_norm, rms_norm
from legato.program.ops import Activation
from tests.kernels.tapes import EPS, apply, random_rows, relative_error, silu_mul

if TYPE_CHECKING:
    from legato.kernels._native import Activation as ActivationName
    from legato.kernels._native import Device, Tape

WIDTHS = [1, 8, 13, 64, 100, 577]  # around the lanes of every instruction set


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_of_any_width(device: "Device", width: int) -> None:
    x, weight = 1e3 * random_rows(5, width), random_rows(1, width, seed=1)[0]
    found = apply(device, x, lambda tape, value: tape.rms_norm(value, weight, EPS))
    assert relative_error(found, rms_norm(x, weight, EPS)) < 1e-6


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_of_any_width(device: "Device", width: int) -> None:
    x = 5 * random_rows(5, 2 * width)
    found = apply(device, x, lambda tape, value: tape.activate(value, "silu", is_gated=True))
    assert relative_error(found, silu_mul(x[:, :width], x[:, width:])) < 1e-6


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_of_any_width(device: "Device", width: int) -> None:
    x, weight, bias = (random_rows(5, width, seed) for seed in range(3))
    x = 30 + 1e3 * x
    found = apply(device, x, lambda tape, value: tape.layer_norm(value, weight[0], bias[0], EPS))
    assert relative_error(found, layer_norm(x, weight[0], bias[0], EPS)) < 1e-6


@pytest.mark.parametrize("width", WIDTHS)
def test_heads_are_normed_in_place_and_nothing_beside_them(device: "Device", width: int) -> None:
    x, weight = random_rows(5, 3 + 4 * width + 2), random_rows(1, width, seed=1)[0]

    def record(tape: "Tape", value: int) -> int:
        tape.rms_norm_heads(value, 3, 4, weight, EPS)
        return value

    found = apply(device, x, record)
    assert relative_error(found[:, 3:-2], rms_norm(x[:, 3:-2], weight, EPS)) < 1e-6
    assert np.array_equal(np.delete(found, np.s_[3:-2], axis=1), np.delete(x, np.s_[3:-2], axis=1))


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("function", ACTIVATIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_activation_of_any_width(device: "Device", width: int, function: Activation, is_gated: bool) -> None:
    x, up = 5 * random_rows(5, width), random_rows(5, width, seed=1)
    with np.errstate(over="ignore"):  # of e^-x: the quotient is 0 then
        wanted = ACTIVATIONS[function](x) * (up if is_gated else 1)
    rows = np.concatenate([x, up], axis=1) if is_gated else x
    found = apply(device, rows, lambda tape, value: tape.activate(value, function.value, is_gated))
    assert relative_error(found, wanted) < 1e-6


@pytest.mark.parametrize("function", [Activation.GELU, Activation.GELU_TANH])
def test_gelu_keeps_its_digits_where_it_is_small(device: "Device", function: Activation) -> None:
    x = np.linspace(-5, 5, 20_001, dtype=np.float32)[:, None]
    found = apply(device, x, lambda tape, value: tape.activate(value, function.value, is_gated=False))[:, 0]
    each = x[:, 0].astype(np.float64)
    if function is Activation.GELU:
        wanted = [v * math.erfc(-v / math.sqrt(2)) / 2 for v in each]
    else:
        wanted = each / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (each + 0.044715 * each**3)))
    np.testing.assert_allclose(found, wanted, rtol=4e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "x", "wanted"),
    [
        ("gelu", -1e30, 0),
        ("gelu", -30, 0),
        ("gelu", 1e30, 1e30),
        ("gelu", math.inf, math.inf),
        ("gelu", math.nan, math.nan),
        ("gelu_tanh", -30, 0),
        ("gelu_tanh", 1e10, 1e10),
        ("gelu_tanh", math.nan, math.nan),
        ("relu", -math.inf, 0),
        ("relu", math.inf, math.inf),
        ("relu", math.nan, math.nan),
    ],
)
def test_activation_of_numbers_at_the_edge(
    device: "Device", function: "ActivationName", x: float, wanted: float
) -> None:
    rows = np.array([[x]], np.float32)
    found = apply(device, rows, lambda tape, value: tape.activate(value, function, is_gated=False))
    assert found[0, 0] == pytest.approx(np.float32(wanted), abs=1e-7, nan_ok=True)


def test_activation_that_does_not_exist_is_refused_with_those_that_do(device: "Device") -> None:
    with pytest.raises(ValueError, match='no activation "mish"; there are silu, gelu, gelu_tanh, relu'):
        apply(device, random_rows(1, 8), lambda tape, value: tape.activate(value, "mish", is_gated=False))


def sigmoid(device: "Device", x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) by way of silu_mul, whose second factor is 1 / x."""
    pairs = np.stack([x, 1 / x], axis=1).astype(np.float32)
    return apply(device, pairs, lambda tape, value: tape.activate(value, "silu", is_gated=True))[:, 0]


def test_exp_is_right_to_the_last_places(device: "Device") -> None:
    x = np.linspace(-80, 30, 20_001, dtype=np.float32)[1:]
    wanted = x.astype(np.float64) * (1 / x).astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(sigmoid(device, x) / wanted - 1).max() < 4e-7  # exp, a sum, a quotient, a product


@pytest.mark.parametrize(
    ("gate", "wanted"),
    [(-1e30, 0), (-88, 0), (0, 0), (88, 88), (1e30, 1e30), (math.inf, math.inf), (math.nan, math.nan)],
)
def test_silu_of_numbers_at_the_edge(device: "Device", gate: float, wanted: float) -> None:
    x = np.array([[gate, 1]], np.float32)
    found = apply(device, x, lambda tape, value: tape.activate(value, "silu", is_gated=True))
    assert found[0, 0] == pytest.approx(np.float32(wanted), abs=1e-7, nan_ok=True)


def quantized(device: "Device", x: np.ndarray) -> np.ndarray:
    """What the products with int8 see of x: its product with the identity."""
    width = x.shape[1]
    scales = np.zeros((width, width // 32), np.float32)
    scales[np.arange(width), np.arange(width) // 32] = 1
    identity = device.pack("q8", np.eye(width, dtype=np.int8), scales)
    return apply(device, x, lambda tape, value: tape.linear(value, identity))


def test_a_group_of_32_is_rounded_to_127ths_of_its_largest(device: "Device") -> None:
    x = random_rows(6, 96) * np.float32([[1e-20], [1e-3], [1], [1], [1e3], [1e20]])
    x[2, 32:64] = 0
    groups = x.reshape(6, 3, 32)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    steps = np.rint(np.divide(groups, scales, out=np.zeros_like(groups), where=scales > 0))

    np.testing.assert_allclose(quantized(device, x), (steps * scales).reshape(6, 96), rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_shows_in_a_product_with_int8(device: "Device", bad: float) -> None:
    x = random_rows(3, 64)
    x[1, 40] = bad
    assert np.isnan(quantized(device, x)).any(axis=1).tolist() == [False, True, False]
