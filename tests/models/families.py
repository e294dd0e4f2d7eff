"""Tiny checkpoints of every family, made by transformers with random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCAB, LAYERS = 96, 4
WINDOW = 24  # tokens, of the families that have one
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # the usual 0.02 leaves attention almost uniform: nothing would be tested
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
MOE = COMMON | {"head_dim": 16, "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3}
GEMMA = COMMON | {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": WINDOW}
SCALED_TO = {"factor": 4.0, "original_max_position_embeddings": 64}
OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "init_std": 0.3,
    "pad_token_id": 1,
}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **parameters}}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name -> class of transformers, its settings
    "llama": ("Llama", COMMON | rope("default")),
    "llama with biases": ("Llama", COMMON | {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3": (
        "Llama",
        COMMON | rope("llama3", **SCALED_TO, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "llama, linear": ("Llama", COMMON | rope("linear", factor=3.0)),
    "llama, dynamic": ("Llama", COMMON | rope("dynamic", factor=3.0)),
    "llama, yarn": ("Llama", COMMON | rope("yarn", **SCALED_TO)),
    "mistral": ("Mistral", COMMON | {"sliding_window": WINDOW}),
    "mistral without a window": ("Mistral", COMMON | {"sliding_window": None}),
    "qwen2": ("Qwen2", COMMON | {"tie_word_embeddings": True}),
    "qwen2 with a window": (
        "Qwen2",
        COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", COMMON | {"head_dim": 16}),
    "qwen3 moe": ("Qwen3Moe", MOE | {"norm_topk_prob": True}),
    "qwen3 moe, layers without experts": (
        "Qwen3Moe",
        MOE
        | {
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "mixtral": ("Mixtral", COMMON | {"head_dim": 8, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "mixtral with a window": (
        "Mixtral",
        COMMON | {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": WINDOW},
    ),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", GEMMA | {"layer_types": ALTERNATING}),
    "phi3": ("Phi3", COMMON | {"original_max_position_embeddings": 256, "sliding_window": WINDOW}),
    "phi3, longrope": (
        "Phi3",
        COMMON
        | {"max_position_embeddings": 1024, "original_max_position_embeddings": 192}
        | rope(
            "longrope",
            partial_rotary_factor=0.5,
            short_factor=[1.0, 2.0],
            long_factor=[2.0, 9.0],
        ),
    ),
    "smollm3": ("SmolLM3", COMMON),
    "granite": (
        "Granite",
        COMMON
        | {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
    ),
    "opt": ("OPT", OPT),
    "opt, post-norm and projections": (
        "OPT",
        OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 20},
    ),
    "opt without biases": ("OPT", OPT | {"enable_bias": False}),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": VOCAB,
            "n_embd": 32,
            "n_layer": LAYERS,
            "n_head": 4,
            "n_positions": 160,
            "initializer_range": 0.3,
        },
    ),
}


def make(name: str) -> PreTrainedModel:
    return make_with(*FAMILIES[name])


def head_class(family: str) -> str:
    return "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"


def make_with(family: str, settings: dict[str, Any]) -> PreTrainedModel:
    """A model whose every weight is random, those of norms and biases too."""
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    model = getattr(transformers, head_class(family))(config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) / 5
    assert isinstance(model, PreTrainedModel)
    return model


def save(name: str, folder: Path) -> PreTrainedModel:
    model = make(name)
    model.save_pretrained(folder)
    return model
