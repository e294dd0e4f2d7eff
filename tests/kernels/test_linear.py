"""Products with packed weights of every format: near float64, and with bits that hang on the row alone."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.backends.group_packing import pack_q4, pack_q5, pack_q6
from legato.backends.stored_weight import to_bfloat16
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import apply, int32, random_rows, relative_error

if TYPE_CHECKING:
    from legato.kernels._native import Device, PackedWeight, Tape, WeightFormat

FLOATS: "list[WeightFormat]" = ["f32", "bf16", "f16"]
QUANTISED: "list[WeightFormat]" = ["q4", "q5", "q6", "q8", "i8"]
ROUNDS_INPUTS = "avx512_vnni_bf16"  # multiplies pairs of bfloat16, so its inputs are rounded to bfloat16 too

every_format = pytest.mark.parametrize("weight_format", [*FLOATS, *QUANTISED])


@dataclass(frozen=True)
class Matrix:
    """What `Device.pack` takes, and the same numbers in float64: [outputs, inputs]."""

    format: "WeightFormat"
    values: np.ndarray
    scales: np.ndarray | None
    minimums: np.ndarray | None
    exact: np.ndarray

    def packed(self, device: "Device") -> "PackedWeight":
        return device.pack(self.format, self.values, self.scales, self.minimums)


@cache
def matrix(weight_format: "WeightFormat", outputs: int, inputs: int) -> Matrix:
    rng = np.random.default_rng(outputs)
    if weight_format in FLOATS:
        return float_matrix(weight_format, rng.standard_normal((outputs, inputs), dtype=np.float32) / 20)
    if weight_format == "i8":
        q, scales = rng.integers(-128, 128, (outputs, inputs), np.int8), halves(rng.random(outputs) / 1000)
        return Matrix("i8", q, scales, None, q * scales[:, None].astype(np.float64))
    groups = (outputs, inputs // 32)
    if weight_format == "q8":
        q, scales = rng.integers(-128, 128, (*groups, 32), np.int8), halves(rng.random(groups) / 1000)
        exact = (q * scales[..., None].astype(np.float64)).reshape(outputs, inputs)
        return Matrix("q8", q.reshape(outputs, inputs), scales, None, exact)
    scales, minimums = halves(rng.random(groups) / 50), halves(-rng.random(groups) / 5)
    if weight_format == "q6":
        q, multipliers = (
            rng.integers(-32, 32, (*groups, 32), np.int8),
            rng.integers(-128, 128, (*groups, 2), np.int8),
        )
        q[0, 0], multipliers[0, 0] = -32, -128  # as far as the integers go
        packed, scales = pack_q6(q.reshape(-1, 32), multipliers.reshape(-1, 2)), halves(scales / 100)
        exact = q * np.repeat(scales[..., None].astype(np.float64) * multipliers, 16, axis=-1)
        return Matrix("q6", packed.reshape(outputs, -1), scales, None, exact.reshape(outputs, inputs))
    pack, most = (pack_q4, 15) if weight_format == "q4" else (pack_q5, 31)
    q = rng.integers(0, most + 1, (*groups, 32), np.uint8)
    q[0, 0] = most
    exact = q * scales[..., None].astype(np.float64) + minimums[..., None]
    packed = pack(q.reshape(-1, 32)).reshape(outputs, -1)
    return Matrix(weight_format, packed, scales, minimums, exact.reshape(outputs, inputs))


def float_matrix(weight_format: "WeightFormat", values: np.ndarray) -> Matrix:
    match weight_format:
        case "bf16":
            bits = to_bfloat16(values)
            return Matrix("bf16", bits, None, None, from_bfloat16(bits))
        case "f16":
            rounded = values.astype(np.float16)
            return Matrix("f16", rounded.view(np.uint16), None, None, rounded.astype(np.float64))
    return Matrix("f32", values, None, None, values.astype(np.float64))


def halves(numbers: np.ndarray) -> np.ndarray:
    """As float32, but such as a half holds: that is how they are kept."""
    return numbers.astype(np.float16).astype(np.float32)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def as_int8(groups: np.ndarray) -> np.ndarray:
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    q = np.rint(groups * (np.float32(127) / np.where(largest, largest, np.float32(1))))
    return q * (largest / np.float32(127)).astype(np.float64)


def is_refined(groups: np.ndarray) -> np.ndarray:
    """Whether a group's largest magnitude is more than one and a half times what is usual in its row."""
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    return largest > 1.5 * np.sqrt((largest**2).mean(axis=1, keepdims=True))


def rows_with_outliers(num_rows: int, width: int) -> np.ndarray:
    """Of which every other one has a group that is many times larger than the rest, each its own."""
    x = random_rows(num_rows, width)
    for row in range(0, num_rows, 2):
        start = row // 2 * 32 % (width // 32 * 32)
        x[row, start : start + 32] *= 20
    return x


def as_multiplied(x: np.ndarray, weight_format: "WeightFormat", isa: str) -> np.ndarray:
    """The rows as a product reads them: int8 with a scale a group of 32, bfloat16, or as they are."""
    if weight_format in QUANTISED:
        groups = x.reshape(len(x), -1, 32)
        rounded = as_int8(groups)
        rest = as_int8((groups - rounded).astype(np.float32))
        return (rounded + np.where(is_refined(groups), rest, 0)).reshape(x.shape)
    return from_bfloat16(to_bfloat16(x)) if (weight_format, isa) == ("bf16", ROUNDS_INPUTS) else x


def product(device: "Device", x: np.ndarray, weight: "PackedWeight") -> np.ndarray:
    return apply(device, x, lambda tape, value: tape.linear(value, weight))


@every_format
@pytest.mark.parametrize(("outputs", "inputs"), [(100, 576), (37, 96), (1, 32), (33, 1536)])
def test_product_agrees_with_float64(
    device: "Device", weight_format: "WeightFormat", outputs: int, inputs: int
) -> None:
    weight, x = matrix(weight_format, outputs, inputs), rows_with_outliers(13, inputs)
    x[3, :32] = 0  # a group without a scale
    wanted = as_multiplied(x, weight_format, device.isa) @ weight.exact.T
    assert relative_error(product(device, x, weight.packed(device)), wanted) < 1e-5


@pytest.mark.parametrize("weight_format", FLOATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(50, 77), (5, 1), (3, 2), (17, 257)])
def test_float_weights_may_have_any_number_of_inputs(
    device: "Device", weight_format: "WeightFormat", outputs: int, inputs: int
) -> None:
    weight, x = matrix(weight_format, outputs, inputs), random_rows(7, inputs)
    wanted = as_multiplied(x, weight_format, device.isa) @ weight.exact.T
    assert relative_error(product(device, x, weight.packed(device)), wanted) < 1e-5


@pytest.mark.parametrize("weight_format", QUANTISED)
def test_outliers_leave_the_product_as_exact_as_the_rest_of_the_row_is(
    device: "Device", weight_format: "WeightFormat"
) -> None:
    weight, x = matrix(weight_format, 100, 1536), random_rows(4, 1536)
    x[:, 64:96] *= 100
    found = product(device, x, weight.packed(device))
    assert relative_error(found, x @ weight.exact.T) < 1e-3  # 5e-3 and more if all groups had 8 bits


@every_format
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_bits_of_a_row_do_not_depend_on_its_company(
    device: "Device", weight_format: "WeightFormat", num_threads: int
) -> None:
    weight, x = matrix(weight_format, 101, 160), rows_with_outliers(13, 160)
    alone = [product(device, row[None], weight.packed(device)) for row in x]
    other = open_or_fail(num_threads, device.isa)
    packed = weight.packed(other)
    for num_rows in range(1, 14):
        found = product(other, x[-num_rows:], packed)
        assert found.tobytes() == np.concatenate(alone[-num_rows:]).tobytes()


@every_format
def test_bits_of_an_output_do_not_depend_on_its_neighbours(
    device: "Device", weight_format: "WeightFormat"
) -> None:
    weight, x = matrix(weight_format, 101, 160), random_rows(6, 160)
    parts = [
        None if array is None else array[37:40] for array in (weight.values, weight.scales, weight.minimums)
    ]
    assert (
        product(device, x, device.pack(weight_format, *parts)).tobytes()
        == product(device, x, weight.packed(device))[:, 37:40].tobytes()
    )


@every_format
def test_adding_a_product_is_one_rounded_sum(device: "Device", weight_format: "WeightFormat") -> None:
    weight, x = matrix(weight_format, 75, 96).packed(device), random_rows(9, 96)
    before = device.pack("f32", random_rows(75, 96, seed=1))

    def record(tape: "Tape", value: int) -> int:
        into = tape.linear(value, before)
        tape.add_linear(into, value, weight)
        return into

    wanted = product(device, x, before) + product(device, x, weight)
    assert apply(device, x, record).tobytes() == wanted.tobytes()


@every_format
@pytest.mark.parametrize("outputs", [37, 100])
def test_a_bias_is_one_rounded_sum_before_the_product_is_added(
    device: "Device", weight_format: "WeightFormat", outputs: int
) -> None:
    weight, x = matrix(weight_format, outputs, 96).packed(device), random_rows(9, 96)
    bias, before = random_rows(1, outputs, seed=2)[0], device.pack("f32", random_rows(outputs, 96, seed=1))

    def record(tape: "Tape", value: int) -> int:
        into = tape.linear(value, before)
        tape.add_linear(into, value, weight, bias)
        return into

    with_bias = product(device, x, weight) + bias
    assert (
        apply(device, x, lambda tape, value: tape.linear(value, weight, bias)).tobytes()
        == with_bias.tobytes()
    )
    assert apply(device, x, record).tobytes() == (product(device, x, before) + with_bias).tobytes()


@every_format
@pytest.mark.parametrize("outputs", [1, 37, 100])
def test_each_row_of_a_packed_matrix_can_be_read_back(
    device: "Device", weight_format: "WeightFormat", outputs: int
) -> None:
    weight = matrix(weight_format, outputs, 96)
    found = embedded(device, weight.packed(device), outputs)
    np.testing.assert_allclose(found, weight.exact, rtol=3e-7, atol=1e-7)


@every_format
def test_packed_bytes_are_all_that_a_weight_is(device: "Device", weight_format: "WeightFormat") -> None:
    weight = matrix(weight_format, 37, 96).packed(device)
    room = np.zeros(weight.data.nbytes + 63, np.uint8)
    aligned = room[-room.ctypes.data % 64 :][: weight.data.nbytes]
    aligned[:] = weight.data
    again = device.packed(weight_format, 37, 96, aligned)
    assert embedded(device, again, 37).tobytes() == embedded(device, weight, 37).tobytes()


def embedded(device: "Device", weight: "PackedWeight", num_rows: int) -> np.ndarray:
    """Rows 0 to num_rows - 1 of the weight: what `unpack_row` makes of them."""
    tape = device.tape(device.kv_store(1, 1, num_rows, 1, 32, "f32"), num_rows, num_rows)
    tape.finish(tape.select(tape.embedding(weight)))
    rows = np.arange(num_rows, dtype=np.int32)
    return tape.forward(rows, rows, int32(0, num_rows), int32(num_rows), int32(0)[None], rows).copy()
