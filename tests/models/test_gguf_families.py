"""A family's .gguf file gives the logits of the folder that it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.models.families import FAMILIES, make
from tests.models.gguf_files import write_gguf
from tests.models.test_families import TOKEN_IDS
from tests.models.test_hf_parity import TOLERANCE, compile_model, hf_logits, our_logits, worst_difference

pytestmark = pytest.mark.oracle

LLAMA3 = np.array([1.0, 1.0, 1.3, 4.0], np.float32)
FILES: dict[str, tuple[str, dict[str, Any]]] = {  # family -> architecture, further keys
    "llama": ("llama", {"rope.freq_base": 500.0, "rope.dimension_count": 8}),
    "llama with biases": ("llama", {}),
    "llama, linear": (
        "llama",
        {"rope.freq_base": 500.0, "rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    ),
    "llama, yarn": (
        "llama",
        {
            "rope.freq_base": 500.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "mistral without a window": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3 moe": ("qwen3moe", {}),
    "mixtral": ("llama", {"rope.freq_base": 1e6, "expert_gating_func": 1}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3", {"attention.sliding_window_pattern": 2, "rope.freq_base": 1e6}),
    "phi3": ("phi3", {"rope.dimension_count": 8}),
    "phi3, longrope": (
        "phi3",
        {
            "rope.freq_base": 500.0,
            "rope.dimension_count": 4,
            "rope.scaling.original_context_length": 192,
            "rope_factors_short.weight": np.array([1.0, 2.0], np.float32),
            "rope_factors_long.weight": np.array([2.0, 9.0], np.float32),
        },
    ),
    "smollm3": ("smollm3", {"rope.freq_base": 2e6}),
    "granite": ("granite", {}),
    "gpt2": ("gpt2", {}),
}
READ_BY_TRANSFORMERS = ["llama", "qwen2", "qwen3", "qwen3 moe", "gemma2", "gemma3", "gpt2"]


def gguf_model(name: str) -> PreTrainedModel:
    model = make(name)
    if name.startswith("gemma"):  # the scale of scores stands in no key: it is that of a head
        for layer in model.model.layers:
            layer.self_attn.scaling = model.config.head_dim**-0.5
    return model


@pytest.mark.parametrize("name", FILES)
def test_logits_of_a_gguf_file_are_hugging_faces(name: str, tmp_path: Path) -> None:
    architecture, extra = FILES[name]
    model, path = gguf_model(name), tmp_path / "model.gguf"
    write_gguf(path, architecture, model, extra)
    found = our_logits(compile_model(path, "cpu"), TOKEN_IDS)
    assert worst_difference(found, hf_logits(model, TOKEN_IDS)) <= TOLERANCE


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_same_file_alike(name: str, tmp_path: Path) -> None:
    architecture, extra = FILES[name]
    model, path = make(name), tmp_path / "model.gguf"
    write_gguf(path, architecture, model, extra)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    wanted = model.state_dict()
    assert len(theirs) > 10 * FAMILIES[name][1].get("num_hidden_layers", 4) // 2
    for key, tensor in theirs.items():
        assert np.allclose(tensor.numpy(), wanted[key].numpy(), atol=1e-6), key


def test_frequencies_that_a_tensor_divides_are_those_of_llama3(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = make("llama")
    model.model.rotary_emb.inv_freq /= model.model.rotary_emb.inv_freq.new_tensor(LLAMA3)
    write_gguf(path, "llama", model, {"rope.freq_base": 500.0, "rope_freqs.weight": LLAMA3})
    found = our_logits(compile_model(path, "cpu"), TOKEN_IDS)
    assert worst_difference(found, hf_logits(model, TOKEN_IDS)) <= TOLERANCE
