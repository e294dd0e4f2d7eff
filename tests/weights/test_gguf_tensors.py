"""GGUF block formats decode to the bits that the gguf package gives."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from legato.backends.stored_weight import CHUNK_GROUPS, StoredWeight
from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.gguf_header import GGML_TYPES
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.weights.gguf_blocks import CHUNK_BLOCKS
from legato.weights.gguf_tensors import GgufFile, split_half_rows
from legato.weights.loader import load_weights
from tests.model_builders import GGML_IDS, gguf_bytes
from tests.weights.blocks import HALVES

FLOATS = ["F32", "F16", "BF16"]
HOSTILE = np.array([np.nan, np.inf, -np.inf, 65504, -65504, 6e-8, 0, -0.0], np.float16)


def random_blocks(type_name: str, num_values: int, halves: np.ndarray | None = None) -> bytes:
    """Random bits, but for the halves: those given, in turn, or random numbers."""
    ggml_type = GGML_TYPES[GGML_IDS[type_name]]
    random = np.random.default_rng(num_values)
    num_blocks = num_values // ggml_type.block_len
    blocks = random.integers(0, 256, (num_blocks, ggml_type.block_bytes), dtype=np.uint8)
    for offset in HALVES[type_name]:
        scales = random.standard_normal(num_blocks).astype(np.float16)
        if halves is not None:
            scales = random.permutation(np.resize(halves, num_blocks))
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def decoded(tmp_path: Path, type_name: str, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({}, {"x": (shape, type_name, raw)}))
    values = GgufFile(tmp_path / "model.gguf").read("x").float32()
    assert values.dtype == np.float32
    assert values.shape == shape
    assert values.flags.c_contiguous
    return values


def by_gguf(type_name: str, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    quantized = np.frombuffer(raw, np.uint8).reshape(shape[0], -1)
    return gguf.dequantize(quantized, gguf.GGMLQuantizationType[type_name])


@pytest.mark.oracle
@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 65)])
def test_floats_are_those_of_the_gguf_package(tmp_path: Path, type_name: str, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kept = {
        "F32": values,
        "F16": values.astype(np.float16),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
    }
    raw = kept[type_name].tobytes()
    assert decoded(tmp_path, type_name, shape, raw).tobytes() == by_gguf(type_name, shape, raw).tobytes()


@pytest.mark.oracle
@pytest.mark.parametrize("type_name", HALVES)
@pytest.mark.parametrize("shape", [(1, 256), (3, 512), (CHUNK_GROUPS // 8 + 1, 256), (CHUNK_BLOCKS + 1, 256)])
def test_decoded_bits_are_those_of_the_gguf_package(
    tmp_path: Path, type_name: str, shape: tuple[int, int]
) -> None:
    raw = random_blocks(type_name, shape[0] * shape[1])
    ours, theirs = decoded(tmp_path, type_name, shape, raw), by_gguf(type_name, shape, raw)
    assert np.array_equal(ours, theirs)  # to the bit, but that a zero may have the other sign


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")  # theirs
@pytest.mark.parametrize("type_name", HALVES)
def test_scales_that_are_no_numbers_give_what_the_gguf_package_gives(tmp_path: Path, type_name: str) -> None:
    shape = (64, 256)
    raw = random_blocks(type_name, 64 * 256, HOSTILE)
    ours, theirs = decoded(tmp_path, type_name, shape, raw), by_gguf(type_name, shape, raw)
    finite = np.isfinite(theirs)
    assert np.array_equal(ours[finite], theirs[finite])
    assert not np.isfinite(ours[~finite]).any()
    if type_name not in (
        "Q4_0",
        "Q5_0",
    ):  # of an infinite scale, q * d - 8 * d is no number where theirs is infinite
        assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.oracle
@pytest.mark.parametrize("type_name", HALVES)
@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_blocks_of_all_bits_alike_decode_too(tmp_path: Path, type_name: str, byte: int) -> None:
    blocks = np.full((4, GGML_TYPES[GGML_IDS[type_name]].block_bytes), byte, np.uint8)
    for offset in HALVES[type_name]:
        blocks[:, offset : offset + 2] = np.float16(0.5).reshape(1).view(np.uint8)
    raw = np.tile(blocks, (256 // GGML_TYPES[GGML_IDS[type_name]].block_len, 1)).tobytes()
    assert np.array_equal(decoded(tmp_path, type_name, (4, 256), raw), by_gguf(type_name, (4, 256), raw))


@pytest.mark.parametrize("type_name", HALVES)
def test_bytes_said_are_those_of_the_weight_that_is_read(tmp_path: Path, type_name: str) -> None:
    raw = random_blocks(type_name, 4 * 512)
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({}, {"x": ((4, 512), type_name, raw)}))
    file = GgufFile(tmp_path / "model.gguf")
    kept = file.read("x")
    if kept.format == "f32":
        kept = kept.bfloat16()
    extra = sum(each.size * 2 for each in (kept.scales, kept.minimums) if each is not None)  # kept as halves
    assert file.tensors["x"].num_bytes == kept.num_bytes - extra


def test_other_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({}, {"blk.0.x": ((1, 256), "I8", bytes(256))}))
    with pytest.raises(ModelError, match=r"'blk\.0\.x' is I8; F32, F16, BF16, Q4_0, .*, IQ4_XS are read"):
        GgufFile(tmp_path / "model.gguf").read("blk.0.x")


def test_rows_that_do_not_fill_blocks_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({}, {"blk.0.x": ((2, 384), "Q4_K", bytes(432))}))
    with pytest.raises(ModelError, match=r"'blk\.0\.x' of shape \[2, 384\] does not divide into Q4_K blocks"):
        GgufFile(tmp_path / "model.gguf")


def test_halves_round_what_they_do_not_hold() -> None:
    scales = np.array([[1.0, 1 + 2**-12, 2**-30, 3e-8]], np.float32)
    weight = StoredWeight("q8", (1, 128), np.ones((1, 128), np.int8), scales)
    rounded = weight.with_half_scales()
    assert rounded.scales is not None
    assert rounded.scales.tolist() == [[1.0, 1.0, 0.0, 2**-24]]
    assert rounded.with_half_scales() is rounded


def test_rows_of_interleaved_halves_are_parted_again() -> None:
    # llama.cpp stores head rows as 0 3 1 4 2 5 (half, half, half, …); ours are 0 1 2 | 3 4 5
    stored = np.array([0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11])
    assert stored[split_half_rows(num_heads=2, head_dim=6)].tolist() == list(range(12))


@pytest.mark.model
def test_default_model_stays_as_small_as_its_file() -> None:
    path = resolve("smollm2-135m-instruct").path
    model = build_model(read_model_config(path))
    weights = load_weights(path, model.program, model.tensors)
    assert sum(weight.float32().size for weight in weights.values()) == 134_515_008
    assert {weight.format for weight in weights.values()} == {"f32", "q4", "q8"}
    assert sum(weight.num_bytes for weight in weights.values()) < 1.2 * path.stat().st_size
