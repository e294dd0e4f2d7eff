"""The probes of a machine's ceilings: they read everything, and count what they multiply."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from legato.kernels._native import Device, WeightFormat


@pytest.mark.parametrize("size", [0, 1, 63, 64 * 1024, 3 * 64 * 1024 + 129])
def test_read_gives_the_sum_of_all(device: "Device", size: int) -> None:
    assert device.probe_read(np.ones(size, np.float32)) == size


@pytest.mark.parametrize("weight_format", ["f32", "f16", "bf16", "q4", "q8", "i8"])
def test_multiply_adds_grow_with_the_rounds(device: "Device", weight_format: "WeightFormat") -> None:
    few, many = (device.probe_multiply(weight_format, rounds) for rounds in (16, 64))
    assert many == 4 * few > 0


def test_integer_products_have_more_multiply_adds_a_vector_than_floats(device: "Device") -> None:
    num = {each: device.probe_multiply(each, 16) for each in ("f32", "q4", "i8")}
    assert (num["i8"], num["q4"]) == (4 * num["f32"], 32 * num["f32"])


def test_probe_that_is_none_is_refused(device: "Device") -> None:
    with pytest.raises(ValueError, match='no weight format "q7"'):
        device.probe_multiply("q7", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        device.probe_multiply("f32", 0)
