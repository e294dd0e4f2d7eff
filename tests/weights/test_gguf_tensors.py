"""GGUF block formats decode to the bits that the gguf package gives."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from legato.backends.stored_weight import CHUNK_GROUPS
from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.gguf_header import GGML_TYPES
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.weights.gguf_tensors import GgufFile, split_half_rows
from legato.weights.loader import load_weights
from tests.model_builders import GGML_IDS, gguf_bytes

DECODED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


def random_blocks(type_name: str, num_values: int) -> bytes:
    """Random bits, but with finite scales."""
    ggml_type = GGML_TYPES[GGML_IDS[type_name]]
    random = np.random.default_rng(num_values)
    if ggml_type.block_len == 1:
        values = random.standard_normal(num_values).astype(np.float32)
        return {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
        }[type_name].tobytes()
    num_blocks = num_values // ggml_type.block_len
    blocks = random.integers(0, 256, (num_blocks, ggml_type.block_bytes), dtype=np.uint8)
    num_scales = 2 if type_name == "Q4_1" else 1
    scales = random.standard_normal((num_blocks, num_scales)).astype(np.float16)
    blocks[:, : 2 * num_scales] = scales.view(np.uint8)
    return blocks.tobytes()


@pytest.mark.oracle
@pytest.mark.parametrize("type_name", DECODED)
@pytest.mark.parametrize("shape", [(1, 32), (3, 64), (CHUNK_GROUPS + 1, 96)])
def test_decoded_bits_are_those_of_the_gguf_package(
    tmp_path: Path, type_name: str, shape: tuple[int, int]
) -> None:
    raw = random_blocks(type_name, shape[0] * shape[1])
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({}, {"x": (shape, type_name, raw)}))

    ours = GgufFile(tmp_path / "model.gguf").read("x").float32()

    quantized = np.frombuffer(raw, np.uint8).reshape(shape[0], -1)
    theirs = gguf.dequantize(quantized, gguf.GGMLQuantizationType[type_name])
    assert ours.dtype == np.float32
    assert ours.shape == shape
    assert ours.flags.c_contiguous
    assert np.array_equal(ours, theirs)  # to the bit, but that a zero of Q4_0 may have the other sign


def test_other_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({}, {"blk.0.x": ((1, 256), "Q6_K", bytes(210))}))
    with pytest.raises(ModelError, match=r"'blk\.0\.x' is Q6_K; F32, F16, BF16, Q8_0, Q4_0, Q4_1 are read"):
        GgufFile(tmp_path / "model.gguf").read("blk.0.x")


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
