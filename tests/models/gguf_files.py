"""Tiny checkpoints as .gguf files, as llama.cpp's converter lays them out."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

INTERLEAVED = ("llama", "smollm3", "granite")  # architectures whose q and k are reordered
KEYS = {  # config.json's name -> the header's key, after its architecture
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


def write_gguf(path: Path, architecture: str, model: PreTrainedModel, extra: Mapping[str, object]) -> None:
    """extra: further keys of the header, after the architecture, and arrays under their tensors' names."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, key in KEYS.items():
        value = getattr(model.config, name, None)
        if name == "intermediate_size" and value is None:
            value = 4 * model.config.hidden_size
        if value is not None:
            add_value(writer, f"{architecture}.{key}", value)
    for name, tensor in tensors(architecture, model).items():
        writer.add_tensor(name, tensor)
    for key, value in extra.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        else:
            add_value(writer, f"{architecture}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)


def tensors(architecture: str, model: PreTrainedModel) -> dict[str, np.ndarray]:
    config = model.config
    kind = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    found = {}
    for name, tensor in parted(model.state_dict()).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        found[stored] = laid_out(architecture, name, tensor.float().numpy(), config)
    return found


def parted(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """gate and up of stacked experts apart."""
    found = {}
    for name, tensor in state.items():
        if name.endswith(".gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            stem = name.removesuffix("gate_up_proj")
            found |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        else:
            found[f"{name}.weight" if name.endswith("experts.down_proj") else name] = tensor
    return found


def laid_out(architecture: str, name: str, array: np.ndarray, config: PretrainedConfig) -> np.ndarray:
    if architecture in INTERLEAVED and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        array = halves.swapaxes(1, 2).reshape(array.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        array = array + np.float32(1)
    if architecture == "gpt2" and ".c_" in name and array.ndim == 2:
        array = array.T
    return np.ascontiguousarray(array)
