"""Weights by canonical names, the same from either format, and nothing missing unnoticed."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import ModelConfig, read_model_config
from legato.weights.gguf_tensors import GgufFile
from legato.weights.loader import expected_shapes, load_weights
from legato.weights.names import GGUF_NAMES, HF_NAMES, layer_names
from tests.model_builders import TINY_GGUF, TINY_LLAMA, gguf_bytes, random_tensors, write_json

Arrays = dict[str, np.ndarray]


def write_folder(folder: Path, tensors: Arrays, **changes: Any) -> ModelConfig:
    write_json(folder / "config.json", TINY_LLAMA | changes)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return read_model_config(folder)


def tiny_weights(config: ModelConfig) -> Arrays:
    """Random weights of the tiny model by their canonical names."""
    shapes = expected_shapes(config)
    return random_tensors(
        {name: shapes[name.rpartition(".")[2]] for name in layer_names(HF_NAMES, config.num_layers)}
    )


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    write_json(tmp_path / "config.json", TINY_LLAMA)
    return read_model_config(tmp_path)


@pytest.fixture
def stored(config: ModelConfig) -> Arrays:
    """The tiny model's tensors by their names in a Hugging Face folder."""
    names = layer_names(HF_NAMES, config.num_layers)
    return {names[canonical]: array for canonical, array in tiny_weights(config).items()}


def test_folder_gives_every_weight_by_its_canonical_name(
    tmp_path: Path, config: ModelConfig, stored: Arrays
) -> None:
    write_folder(tmp_path, stored)
    weights = load_weights(tmp_path, config)
    expected = tiny_weights(config)
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        assert array.format == "f32"
        assert array.values.flags.c_contiguous
        assert np.array_equal(array.values, expected[name]), name


def interleave_halves(array: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of Q and K."""
    halves = array.reshape(num_heads, 2, -1, array.shape[1])
    return halves.swapaxes(1, 2).reshape(array.shape)


def test_gguf_gives_the_same_as_the_folder_it_was_made_from(tmp_path: Path, config: ModelConfig) -> None:
    expected = tiny_weights(config)
    names = layer_names(GGUF_NAMES, config.num_layers)
    num_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    tensors = {}
    for name, array in expected.items():
        heads = num_heads.get(name.rpartition(".")[2])
        kept = array if heads is None else interleave_halves(array, heads)
        tensors[names[name]] = (array.shape, "F32", kept.tobytes())
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(TINY_GGUF, tensors))

    weights = load_weights(path, read_model_config(path))

    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        assert np.array_equal(array.values, expected[name]), name
        assert array.values.flags.c_contiguous


@pytest.mark.parametrize("has_head", [True, False])
def test_tied_model_has_no_head_of_its_own(tmp_path: Path, stored: Arrays, has_head: bool) -> None:
    if not has_head:
        del stored["lm_head.weight"]
    config = write_folder(tmp_path, stored, tie_word_embeddings=True)
    assert "lm_head" not in load_weights(tmp_path, config)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_missing_tensor_is_named(tmp_path: Path, stored: Arrays, name: str) -> None:
    del stored[name]
    config = write_folder(tmp_path, stored)
    with pytest.raises(ModelError, match=f"tensor '{name}' is missing"):
        load_weights(tmp_path, config)


def test_tensor_of_another_shape_is_named_with_both(tmp_path: Path, stored: Arrays) -> None:
    stored["model.norm.weight"] = np.zeros(9, np.float32)
    config = write_folder(tmp_path, stored)
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' has shape \[9\]; .* \[8\]"):
        load_weights(tmp_path, config)


def test_unused_tensor_is_warned_of_by_name(
    tmp_path: Path, stored: Arrays, caplog: pytest.LogCaptureFixture
) -> None:
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)
    stored["model.layers.0.self_attn.q_norm.weight"] = np.zeros(4, np.float32)
    config = write_folder(tmp_path, stored)
    with caplog.at_level(logging.WARNING):
        load_weights(tmp_path, config)
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [
        "model.layers.0.self_attn.q_norm.weight"
    ]


@pytest.mark.model
@pytest.mark.oracle
def test_default_model_has_the_rows_that_transformers_has() -> None:
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor  # takes seconds to import

    path = resolve("smollm2-135m-instruct").path
    weights = load_weights(path, read_model_config(path))
    processor = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    for ours, stored in (
        ("layers.0.q_proj", "blk.0.attn_q.weight"),
        ("layers.29.k_proj", "blk.29.attn_k.weight"),
    ):
        theirs = processor.process(GgufFile(path).read(stored).float32(), name=stored).weights
        assert np.array_equal(weights[ours].float32(), theirs)
