"""The settings of a model in a .gguf file, from its header alone, under their names in config.json."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import GgufHeader, GgufTensor, Texts, read_gguf_model
from legato.modelfiles.model_config import ModelConfig

BOS_KEY = "tokenizer.ggml.bos_token_id"
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
CONTROL = 3  # in tokenizer.ggml.token_type: a token that no text is

REQUIRED = {  # the header's key, after its architecture -> config.json's name
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.scale": "attention_multiplier",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "expert_feed_forward_length": "moe_intermediate_size",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
ROPE_SCALING = {
    "attn_factor": "attention_factor",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
ROPE_TENSORS = {  # numbers that plain frequencies are divided by: in which scaling, under which name
    "rope_freqs.weight": ("divided", "factors"),
    "rope_factors_short.weight": ("longrope", "short_factor"),
    "rope_factors_long.weight": ("longrope", "long_factor"),
}
BIASES = {"blk.0.attn_q.bias": "attention_bias", "blk.0.ffn_gate.bias": "mlp_bias"}  # no key tells them
PLAIN: dict[str, tuple[Any, ...]] = {  # keys that change numbers, and the values with which they do not
    "attention.clamp_kqv": (0, 0.0),
    "attention.max_alibi_bias": (0, 0.0),
    "expert_gating_func": (1, 0),  # softmax, by either
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (1.0, 0.0),
    "interleave_moe_layer_step": (1, 0),
    "leading_dense_block_count": (0,),
    "moe_every_n_layers": (0, 1),
    "rope.scale_linear": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0, 0.1),
    "use_parallel_residual": (False,),
}


def read_gguf_config(path: Path) -> ModelConfig:
    """Read a .gguf file; see read_model_config. Key names: the GGUF specification."""
    header = read_gguf_model(path)
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"the header's general.architecture is {architecture!r}, not a name")
    is_mixtral = architecture == "llama" and metadata.get("llama.expert_count")  # it has no name of its own
    return ModelConfig(
        architecture="mixtral" if is_mixtral else architecture,
        file_format="gguf",
        source=str(path),
        settings=_settings(header, f"{architecture}.", path),
        vocab_size=_vocab_size(header),
        eos_ids=frozenset(_token_id(header, key) for key in EOS_KEYS if key in metadata)
        | _turn_ends(metadata),
        bos_id=_token_id(header, BOS_KEY) if BOS_KEY in metadata else None,
    )


def _turn_ends(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a turn by their names: many files of chat models declare the end of text alone."""
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if "tokenizer.chat_template" not in metadata or not isinstance(tokens, Texts):
        return frozenset()
    if not isinstance(types, list) or len(types) != len(tokens):
        return frozenset()
    places = [place for text in TURN_ENDS if (place := tokens.position(text)) is not None]
    return frozenset(place for place in places if types[place] == CONTROL)


def _settings(header: GgufHeader, prefix: str, path: Path) -> dict[str, Any]:
    metadata = header.metadata
    settings = {name: _number(metadata, prefix + key) for key, name in REQUIRED.items()}
    for key, name in OPTIONAL.items():
        if prefix + key in metadata:
            settings[name] = _number(metadata, prefix + key)
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    if heads > hidden:
        raise ModelError(f"the header's {prefix}attention.head_count is {heads}, more than there are inputs")
    head_dim = settings.get("head_dim", hidden // heads)
    _refuse_unsupported(metadata, prefix, head_dim)
    rotated_key = f"{prefix}rope.dimension_count"
    rotated = _number(metadata, rotated_key) if rotated_key in metadata else head_dim
    if rotated != head_dim:
        settings["partial_rotary_factor"] = rotated / head_dim
    for tensor, name in BIASES.items():
        if tensor in header.tensors:
            settings[name] = True
    window = metadata.get(f"{prefix}attention.sliding_window")
    if window:
        settings["sliding_window"] = window
    return settings | {
        **_experts(metadata, prefix),
        "rope_scaling": _rope_scaling(header, f"{prefix}rope.scaling.", path),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "vocab_size": _vocab_size(header),
        **_local_layers(metadata.get(f"{prefix}attention.sliding_window_pattern")),
    }


def _experts(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What llama.cpp computes of the families that we read: a row's shares sum to 1."""
    if not metadata.get(f"{prefix}expert_count"):
        return {}
    return {name: _number(metadata, prefix + key) for key, name in EXPERTS.items()} | {"norm_topk_prob": True}


def _rope_scaling(header: GgufHeader, prefix: str, path: Path) -> dict[str, Any]:
    kind = header.metadata.get(f"{prefix}type", "none")
    scaling: dict[str, Any] = {}
    for name, (tensor_kind, key) in ROPE_TENSORS.items():
        if name in header.tensors:
            kind = tensor_kind
            scaling[key] = _read_floats(header.tensors[name].path, header.tensors[name])
    if kind == "none":
        return {}
    names = {} if kind == "divided" else ROPE_SCALING
    return (
        scaling
        | {"rope_type": kind}
        | {
            name: header.metadata[prefix + key]
            for key, name in names.items()
            if prefix + key in header.metadata
        }
    )


def _read_floats(path: Path, tensor: GgufTensor) -> list[float]:
    if tensor.type != "F32":
        raise ModelError(f"tensor {tensor.name!r} is {tensor.type}; it should be F32")
    with path.open("rb") as file:
        file.seek(tensor.offset)
        data = file.read(tensor.num_bytes)
    if len(data) < tensor.num_bytes:
        raise ModelError(f"tensor {tensor.name!r} is cut off; download the file again")
    return list(struct.unpack(f"<{tensor.num_bytes // 4}f", data))


def _local_layers(pattern: Any) -> dict[str, Any]:
    """Which layers attend in a window: a truth for each, or every how many-th does not."""
    if isinstance(pattern, list):
        return {"layer_types": ["sliding_attention" if each else "full_attention" for each in pattern]}
    return {} if pattern is None else {"sliding_window_pattern": pattern}


def _number(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(key)
    if not isinstance(value, int | float) or not value > 0:
        raise ModelError(f"the header's {key} is {value!r}, not one positive number")
    return value


def _token_id(header: GgufHeader, key: str) -> int:
    value = header.metadata[key]
    if type(value) is not int or value < 0:
        raise ModelError(f"the header's {key} is {value!r}, not a token id")
    return value


def _refuse_unsupported(metadata: Mapping[str, Any], prefix: str, head_dim: int) -> None:
    for key, plain in (PLAIN | {"attention.value_length": (head_dim,)}).items():
        value = metadata.get(prefix + key, plain[0])
        if value not in plain:
            raise ModelError(f"{prefix}{key} = {value!r} is not supported, only {plain[0]!r}")


def _vocab_size(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError("there is no tensor 'token_embd.weight' of two dimensions")
    return embedding.shape[0]
