"""What Hugging Face and GGUF call the weights of decoders: a family says only where it differs.

Keys are the names of weights in programs; `{i}` is the layer, `{e}` the expert. Norms are named after what
they come before: input_norm before attention, mlp_norm before the MLP; attention_out_norm and mlp_out_norm
come after these.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from legato.program.stored_tensors import StoredTensor

Tensors = Mapping[str, StoredTensor]

# Of models that see images too: their text lies below a name of its own, and the rest is not served.
HF_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.")
IMAGE_TENSORS = ("vision_tower.", "multi_modal_projector.")

_HF_LAYER = {
    "input_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
_GGUF_LAYER = {
    "input_norm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "attention_out_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "mlp_out_norm": "post_ffw_norm",
}


def layer_tensors(names: Mapping[str, str], prefix: str) -> dict[str, StoredTensor]:
    """Weights and biases of every layer. names: the last part of ours -> what follows `prefix` in theirs."""
    tensors = {}
    for ours, theirs in names.items():
        tensors[f"layers.{{i}}.{ours}"] = StoredTensor(f"{prefix}{theirs}.weight")
        tensors[f"layers.{{i}}.{ours}_bias"] = StoredTensor(f"{prefix}{theirs}.bias")
    return tensors


def whole_tensors(names: Mapping[str, str]) -> dict[str, StoredTensor]:
    """The same of weights that belong to no layer."""
    tensors = {}
    for ours, theirs in names.items():
        tensors[ours] = StoredTensor(f"{theirs}.weight")
        tensors[f"{ours}_bias"] = StoredTensor(f"{theirs}.bias")
    return tensors


def interleaved(tensors: Tensors) -> dict[str, StoredTensor]:
    """The same with the heads of q and k as llama.cpp's converter orders them for some families."""
    parts = ("q_proj", "k_proj", "q_proj_bias", "k_proj_bias")
    turned = [f"layers.{{i}}.{part}" for part in parts]
    return dict(tensors) | {name: replace(tensors[name], is_interleaved=True) for name in turned}


def adding_one(tensors: Tensors, names: Iterable[str]) -> dict[str, StoredTensor]:
    """The same with norms of these names that multiply by 1 + what is stored."""
    return dict(tensors) | {name: replace(tensors[name], adds_one=True) for name in names}


_FUSED = "model.layers.{i}.mlp.experts."
HF_TENSORS = whole_tensors(
    {"embed_tokens": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}
) | layer_tensors(_HF_LAYER, "model.layers.{i}.")
GGUF_TENSORS = whole_tensors(
    {"embed_tokens": "token_embd", "final_norm": "output_norm", "lm_head": "output"}
) | layer_tensors(_GGUF_LAYER, "blk.{i}.")
FUSED_EXPERTS = {  # of Hugging Face's files, where the experts of a layer are one tensor
    "layers.{i}.experts.{e}.gate_proj": StoredTensor(_FUSED + "gate_up_proj", is_stacked=True, share=(0, 2)),
    "layers.{i}.experts.{e}.up_proj": StoredTensor(_FUSED + "gate_up_proj", is_stacked=True, share=(1, 2)),
    "layers.{i}.experts.{e}.down_proj": StoredTensor(_FUSED + "down_proj", is_stacked=True),
}
STACKED_EXPERTS = layer_tensors({"router": "ffn_gate_inp"}, "blk.{i}.") | {
    f"layers.{{i}}.experts.{{e}}.{part}_proj": StoredTensor(
        f"blk.{{i}}.ffn_{part}_exps.weight", is_stacked=True
    )
    for part in ("gate", "up", "down")
}
