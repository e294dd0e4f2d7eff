"""Weights by canonical names, the same from either format, and nothing missing unnoticed."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from legato.backends.stored_weight import StoredWeights
from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import read_model_config
from legato.models.family import Model
from legato.models.registry import build_model
from legato.program.ops import weights_of
from legato.weights.gguf_tensors import GgufFile
from legato.weights.loader import load_weights
from tests.model_builders import TINY_GGUF, TINY_LLAMA, gguf_bytes, random_tensors, write_json

Arrays = dict[str, np.ndarray]
GGUF_ENDS = ("token_embd.weight", "output.weight")


def write_folder(folder: Path, tensors: Arrays, **changes: Any) -> Path:
    write_json(folder / "config.json", TINY_LLAMA | changes)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def load(path: Path) -> StoredWeights:
    model = build_model(read_model_config(path))
    return load_weights(path, model.program, model.tensors)


def arrays_of(model: Model) -> Arrays:
    """Random weights of a model by the names in its program."""
    return random_tensors({each.name: each.shape for op in model.program.ops for each in weights_of(op)})


def stored_names(model: Model, prefix: str = "") -> dict[str, str]:
    """The names in the program -> those in its files."""
    return {name: model.tensors.of(name, prefix).name for name in arrays_of(model)}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    write_json(tmp_path / "config.json", TINY_LLAMA)
    return build_model(read_model_config(tmp_path))


@pytest.fixture
def stored(model: Model) -> Arrays:
    """The tiny model's tensors by their names in a Hugging Face folder."""
    names = stored_names(model, "model.")
    return {names[name]: array for name, array in arrays_of(model).items()}


def test_folder_gives_every_weight_by_its_name_in_the_program(
    tmp_path: Path, model: Model, stored: Arrays
) -> None:
    weights = load(write_folder(tmp_path, stored))
    expected = arrays_of(model)
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        assert array.format == "f32"
        assert array.values.flags.c_contiguous
        assert np.array_equal(array.values, expected[name]), name


def test_names_without_their_usual_prefix_are_found(tmp_path: Path, model: Model, stored: Arrays) -> None:
    shorter = {name.removeprefix("model."): array for name, array in stored.items()}
    weights = load(write_folder(tmp_path, shorter))
    assert np.array_equal(weights["final_norm"].values, arrays_of(model)["final_norm"])


def interleave_halves(array: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of Q and K."""
    halves = array.reshape(num_heads, 2, -1, array.shape[1])
    return halves.swapaxes(1, 2).reshape(array.shape)


def test_gguf_gives_the_same_as_the_folder_it_was_made_from(tmp_path: Path, model: Model) -> None:
    expected = arrays_of(model)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(TINY_GGUF, {name: ((16, 8), "F32", bytes(512)) for name in GGUF_ENDS}))
    names = stored_names(build_model(read_model_config(path)))
    num_heads = {"q_proj": 2, "k_proj": 1}
    tensors = {}
    for name, array in expected.items():
        heads = num_heads.get(name.rpartition(".")[2])
        kept = array if heads is None else interleave_halves(array, heads)
        tensors[names[name]] = (array.shape, "F32", kept.tobytes())
    path.write_bytes(gguf_bytes(TINY_GGUF, tensors))

    weights = load(path)

    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        assert np.array_equal(array.values, expected[name]), name
        assert array.values.flags.c_contiguous


def test_bias_that_a_gguf_file_has_and_its_architecture_has_not_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(TINY_GGUF, {name: ((16, 8), "F32", bytes(512)) for name in GGUF_ENDS}))
    model = build_model(read_model_config(path))
    names = stored_names(model)
    tensors = {names[name]: (array.shape, "F32", array.tobytes()) for name, array in arrays_of(model).items()}
    path.write_bytes(gguf_bytes(TINY_GGUF, tensors | {"blk.1.ffn_down.bias": ((8,), "F32", bytes(32))}))
    with pytest.raises(ModelError, match=r"tensor 'blk\.1\.ffn_down\.bias': .* no such bias"):
        load(path)


@pytest.mark.parametrize("has_head", [True, False])
def test_tied_model_has_no_head_of_its_own(
    tmp_path: Path, stored: Arrays, caplog: pytest.LogCaptureFixture, has_head: bool
) -> None:
    if not has_head:
        del stored["lm_head.weight"]
    assert "lm_head" not in load(write_folder(tmp_path, stored, tie_word_embeddings=True))
    assert not caplog.records


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_missing_tensor_is_named(tmp_path: Path, stored: Arrays, name: str) -> None:
    del stored[name]
    with pytest.raises(ModelError, match=f"{tmp_path}: tensor '{name}' is missing: config.json is of"):
        load(write_folder(tmp_path, stored))


def test_tensor_of_another_shape_is_named_with_both(tmp_path: Path, stored: Arrays) -> None:
    stored["model.norm.weight"] = np.zeros(9, np.float32)
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' has shape \[9\]; .* \[8\]"):
        load(write_folder(tmp_path, stored))


def test_unused_tensors_are_warned_of_by_name_in_one_line(
    tmp_path: Path, stored: Arrays, caplog: pytest.LogCaptureFixture
) -> None:
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)
    for layer in range(4):
        stored[f"model.layers.{layer}.self_attn.q_norm.weight"] = np.zeros(4, np.float32)
    with caplog.at_level(logging.WARNING):
        load(write_folder(tmp_path, stored))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "4 tensors are not used by this architecture: 'model.layers.0.self_attn.q_norm.weight', " in line
    assert line.endswith("'model.layers.2.self_attn.q_norm.weight', …")


@pytest.mark.model
@pytest.mark.oracle
def test_default_model_has_the_rows_that_transformers_has() -> None:
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor  # takes seconds to import

    path = resolve("smollm2-135m-instruct").path
    weights = load(path)
    processor = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    for ours, stored in (
        ("layers.0.q_proj", "blk.0.attn_q.weight"),
        ("layers.29.k_proj", "blk.29.attn_k.weight"),
    ):
        theirs = processor.process(GgufFile(path).read(stored).float32(), name=stored).weights
        assert np.array_equal(weights[ours].float32(), theirs)
