"""GGUF files of mixed types: decoded, their logits are those of transformers; quantised, they stay near."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from legato.backends.backend import KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.kernels.library import NoKernels, open_device
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.weights.loader import load_weights
from tests.model_builders import gguf_bytes
from tests.models.test_hf_parity import (
    NUM_PAGES,
    PAGE_SIZE,
    TOLERANCE,
    compile_model,
    hf_logits,
    our_logits,
    random_ids,
    worst_difference,
)
from tests.weights.blocks import weight_blocks

pytestmark = pytest.mark.oracle

HIDDEN, KV_DIM, VOCAB = 256, 128, 300
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 1024,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 64,
    "llama.rope.freq_base": 10000.0,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_DIM, HIDDEN),
    "attn_v": (KV_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (512, HIDDEN),
    "ffn_up": (512, HIDDEN),
    "ffn_down": (HIDDEN, 512),
}
# What llama.cpp's recipes mix, and what they fall back to; every type is in one of them.
MIXES = {
    "Q4_K_M": ("Q6_K", {"attn_v": "Q6_K", "ffn_down": "Q6_K"}, "Q4_K"),
    "Q5_K_M": ("Q6_K", {"attn_v": "Q6_K", "ffn_down": "Q8_0"}, "Q5_K"),
    "Q3_K_M": ("Q6_K", {"attn_v": "Q5_K", "attn_output": "Q4_K", "ffn_down": "Q4_K"}, "Q3_K"),
    "Q2_K": ("Q6_K", {"attn_v": "Q4_K", "attn_output": "Q3_K", "ffn_down": "Q3_K"}, "Q2_K"),
    "IQ4_XS": ("Q6_K", {"attn_v": "Q5_K", "ffn_down": "IQ4_NL"}, "IQ4_XS"),
    "fallbacks": ("Q8_0", {"attn_v": "Q8_0", "ffn_down": "Q5_1", "ffn_up": "Q4_0", "attn_k": "Q4_1"}, "Q5_0"),
}


def write_model(path: Path, mix: str) -> None:
    embeddings, others, usual = MIXES[mix]
    norm = np.ones(HIDDEN, np.float32).tobytes()
    tensors = {
        "token_embd.weight": ((VOCAB, HIDDEN), embeddings),
        **{
            f"blk.{layer}.{kind}.weight": (shape, others.get(kind, usual))
            for layer in range(2)
            for kind, shape in SHAPES.items()
        },
    }
    data = {
        name: (shape, kind, weight_blocks(kind, shape[0] * shape[1], 0.1, seed))
        for seed, (name, (shape, kind)) in enumerate(tensors.items())
    }
    norms = [f"blk.{layer}.{kind}_norm.weight" for layer in range(2) for kind in ("attn", "ffn")]
    data |= dict.fromkeys([*norms, "output_norm.weight"], ((HIDDEN,), "F32", norm))
    path.write_bytes(gguf_bytes(METADATA, data))


def transformers_model(path: Path) -> PreTrainedModel:
    """What from_pretrained(gguf_file=...) does, which asks for a further package to do it."""
    model = LlamaForCausalLM(AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)).eval()
    stored = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(stored["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.mark.parametrize("mix", MIXES)
def test_logits_of_mixed_files_are_those_of_transformers(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, mix)
    ids = random_ids(40, VOCAB)
    wanted = hf_logits(transformers_model(path), ids)
    for backend in ("reference", "cpu"):
        assert worst_difference(our_logits(compile_model(path, backend), ids), wanted) <= TOLERANCE
    quantised = as_served(path, ids)
    assert np.linalg.norm(quantised - wanted) <= 0.05 * np.linalg.norm(wanted)


def as_served(path: Path, ids: list[int]) -> np.ndarray:
    """Logits with weights as they are kept by default and activations of 8 bits."""
    model = build_model(read_model_config(path))
    device = open_device()
    assert not isinstance(device, NoKernels)
    backend = CpuBackend(device, CpuOptions("bf16", is_quantized=True, max_tokens=64, max_samples=64))
    weights = load_weights(path, model.program, model.tensors)
    layout = KVLayout.of(model.program, NUM_PAGES, PAGE_SIZE)
    return our_logits(backend.compile(model.program, weights, layout), ids)
