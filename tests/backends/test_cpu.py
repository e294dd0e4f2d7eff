"""The cpu backend computes what the reference computes, whatever its weights are kept in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from legato.backends.backend import CompiledProgram, KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.packed_cache import PackedCache
from legato.backends.reference import ReferenceBackend
from legato.backends.stored_weight import (
    AnyWeights,
    StoredWeight,
    StoredWeights,
    as_stored,
    to_bfloat16,
)
from legato.kernels.library import NoKernels, instruction_sets, open_device
from legato.models.registry import build_program
from legato.program.ops import Program
from tests.backends.steps import Chunk, make_inputs
from tests.fakes import random_model
from tests.quantized import FORMATS, as_format, as_q4, as_q5, as_q6, as_q8

KV = KVLayout(num_layers=2, num_pages=8, page_size=16, num_kv_heads=3, head_dim=64)
TOLERANCES = {
    "f32": 1e-5,
    "bf16": 4e-3,
    "q4": 2e-2,
    "q8": 2e-2,
    "mixed": 2e-2,
}  # of the logits' norm; 8-bit activations


def compile_cpu(program: Program, weights, *, float_weights: str = "bf16") -> CompiledProgram:
    device = open_device()
    assert not isinstance(device, NoKernels)
    options = CpuOptions(float_weights, is_quantized=True, max_tokens=64, max_samples=64)
    kv = replace(KV, dtype="bfloat16" if float_weights == "bf16" else "float32")
    return CpuBackend(device, options).compile(program, weights, kv)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_the_references_for_the_same_weights(name: str) -> None:
    config, values = random_model(seed=2)
    weights = as_format(values, name)
    decoded = {key: as_stored(weight).float32() for key, weight in weights.items()}
    program = build_program(config)
    step = make_inputs(Chunk(list(range(3, 40)), 0, [5, 2, 7]), Chunk([9, 8], 0, [1]))
    expected = ReferenceBackend().compile(program, decoded, KV).forward(step)
    found = compile_cpu(program, weights, float_weights="f32" if name == "f32" else "bf16").forward(step)
    difference = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert difference.max() <= TOLERANCES[name]


def test_parts_of_one_product_may_be_stored_in_different_formats() -> None:
    config, values = random_model(seed=2)
    weights = dict(as_format(values, "q4"))
    weights["layers.0.v_proj"] = values["layers.0.v_proj"]
    decoded = {key: as_stored(weight).float32() for key, weight in weights.items()}
    step = make_inputs(Chunk([4, 5, 6], 0, [0]))
    program = build_program(config)
    expected = ReferenceBackend().compile(program, decoded, KV).forward(step)
    found = compile_cpu(program, weights).forward(step)
    assert np.linalg.norm(found - expected) <= 2e-2 * np.linalg.norm(expected)


def test_weights_of_one_product_keep_each_its_own_format() -> None:
    device = open_device(1)
    assert not isinstance(device, NoKernels)
    backend = CpuBackend(device, CpuOptions("bf16", is_quantized=True, max_tokens=1, max_samples=1))
    values = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    given = [as_q4(values), as_q6(values), as_stored(values)]
    assert [each.format for each in backend.kept(given)] == ["q4", "q6", "bf16"]


def test_stored_weight_decodes_each_format() -> None:
    values = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    for make, tolerance in ((as_q4, 0.1), (as_q5, 0.04), (as_q6, 0.03), (as_q8, 0.006)):
        decoded = make(values).float32()
        assert decoded.dtype == np.float32
        assert np.abs(decoded - values).max() <= tolerance * np.abs(values).max(), make.__name__
    half = StoredWeight("f16", values.shape, values.astype(np.float16).view(np.uint16))
    assert np.array_equal(half.float32(), values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("make", [as_stored, as_q4, as_q5, as_q6, as_q8])
def test_rounding_to_bfloat16_is_that_of_the_decoded_values(
    make: Callable[[np.ndarray], StoredWeight],
) -> None:
    values = np.random.default_rng(1).standard_normal((70, 1024)).astype(np.float32)
    weight = make(values)
    found = weight.bfloat16()
    assert found.format == "bf16"
    assert np.array_equal(found.values, to_bfloat16(weight.float32()))


def test_nearest_bfloat16_ties_to_even_and_keeps_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FFFFFFF, 0x7F800000, 0x80000000], np.uint32)
    found = to_bfloat16(bits.view(np.float32)).tolist()
    assert found == [0x3F80, 0x3F82, 0x3F81, 0x7FFF, 0x7F80, 0x8000]


# packed weights that are kept


def unreadable(weights: AnyWeights) -> StoredWeights:
    """Weights of which the headers alone may be read."""

    def read(name: str) -> StoredWeight:
        raise AssertionError(f"{name} was read")

    return StoredWeights(weights, read)


def kept_backend(folder: Path, isa: str, float_weights: str, *, is_quantized: bool) -> CpuBackend:
    device = open_device(2, isa)
    assert not isinstance(device, NoKernels)
    options = CpuOptions(float_weights, is_quantized, max_tokens=64, max_samples=64)
    return CpuBackend(device, options, PackedCache(folder, folder / "model", {"fingerprint": "1"}))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize(
    ("name", "float_weights", "is_quantized"),
    [("f32", "f32", False), ("q4", "bf16", False), ("mixed", "bf16", True), ("q8", "f32", True)],
)
def test_mapped_weights_give_the_bits_of_packed_ones_and_no_weight_is_read(
    tmp_path: Path, isa: str, name: str, float_weights: str, is_quantized: bool
) -> None:
    config, values = random_model(seed=2, num_layers=2, vocab_size=512)
    weights, program = as_format(values, name), build_program(config)
    step = make_inputs(Chunk(list(range(3, 40)), 0, [5, 2, 7]), Chunk([9, 8], 0, [1]))

    first = kept_backend(tmp_path, isa, float_weights, is_quantized=is_quantized)
    packed = first.compile(program, weights, KV).forward(step)
    assert first.keeping is not None
    first.keeping.result(timeout=30)
    second = kept_backend(tmp_path, isa, float_weights, is_quantized=is_quantized)
    mapped = second.compile(program, unreadable(weights), KV).forward(step)

    assert second.keeping is None
    assert mapped.tobytes() == packed.tobytes()


def test_weights_that_were_packed_for_another_program_are_packed_again(tmp_path: Path) -> None:
    for vocab_size in (512, 256):  # of the same files, says the cache
        config, values = random_model(seed=2, num_layers=1, vocab_size=vocab_size)
        backend = kept_backend(tmp_path, "scalar", "bf16", is_quantized=False)
        backend.compile(build_program(config), values, KV)
        assert backend.keeping is not None
        backend.keeping.result(timeout=30)


def test_option_that_changes_no_weight_shares_what_is_kept(tmp_path: Path) -> None:
    backend = kept_backend(tmp_path, "scalar", "bf16", is_quantized=False)
    other = CpuBackend(backend.device, replace(backend.options, max_tokens=7))
    assert other._packing == backend._packing
    unlike = CpuBackend(backend.device, replace(backend.options, is_quantized=True))
    assert unlike._packing != backend._packing


def test_memory_of_weights_is_told_before_they_are_read() -> None:
    _, values = random_model(seed=2, num_layers=1, vocab_size=512)
    num_values = sum(array.size for array in values.values())
    device = open_device(1)
    assert not isinstance(device, NoKernels)

    def told(float_weights: str, is_quantized: bool) -> int:
        options = CpuOptions(float_weights, is_quantized, max_tokens=1, max_samples=1)
        return CpuBackend(device, options).weight_bytes(as_format(values, "q8"))

    assert told("bf16", False) == 2 * num_values
    assert told("f32", False) == 4 * num_values
    assert told("bf16", True) < 1.2 * num_values
    assert ReferenceBackend().weight_bytes(values) == 4 * num_values
