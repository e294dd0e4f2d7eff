"""Operations on single rows, of widths that fill no vector and of numbers at the edges."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.backends.reference import rms_norm
from tests.kernels.tapes import EPS, apply, random_rows, relative_error, silu_mul

if TYPE_CHECKING:
    from legato.kernels._native import Device

WIDTHS = [1, 8, 13, 64, 100, 577]  # around the lanes of every instruction set


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_of_any_width(device: "Device", width: int) -> None:
    x, weight = 1e3 * random_rows(5, width), random_rows(1, width, seed=1)[0]
    found = apply(device, x, lambda tape, value: tape.rms_norm(value, weight, EPS))
    assert relative_error(found, rms_norm(x, weight, EPS)) < 1e-6


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_of_any_width(device: "Device", width: int) -> None:
    x = 5 * random_rows(5, 2 * width)
    found = apply(device, x, lambda tape, value: tape.silu_mul(value))
    assert relative_error(found, silu_mul(x[:, :width], x[:, width:])) < 1e-6


def sigmoid(device: "Device", x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) by way of silu_mul, whose second factor is 1 / x."""
    pairs = np.stack([x, 1 / x], axis=1).astype(np.float32)
    return apply(device, pairs, lambda tape, value: tape.silu_mul(value))[:, 0]


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
    found = apply(device, x, lambda tape, value: tape.silu_mul(value))
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
