"""The settings of a model in a .gguf file, from its header alone, under their names in config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import GgufHeader, read_gguf_header
from legato.modelfiles.model_config import ModelConfig

BOS_KEY = "tokenizer.ggml.bos_token_id"
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

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
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
PLAIN: dict[str, tuple[Any, ...]] = {  # keys that change numbers, and the values with which they do not
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "rope.scale_linear": (1.0,),
    "rope.scaling.factor": (1.0, 0.0),
    "rope.scaling.type": ("none",),
}


def read_gguf_config(path: Path) -> ModelConfig:
    """Read a .gguf file; see read_model_config. Key names: the GGUF specification."""
    header = read_gguf_header(path)
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"the header's general.architecture is {architecture!r}, not a name")
    return ModelConfig(
        architecture=architecture,
        file_format="gguf",
        source=str(path),
        settings=_settings(header, f"{architecture}."),
        vocab_size=_vocab_size(header),
        eos_ids=frozenset(_token_id(header, key) for key in EOS_KEYS if key in metadata),
        bos_id=_token_id(header, BOS_KEY) if BOS_KEY in metadata else None,
    )


def _settings(header: GgufHeader, prefix: str) -> dict[str, Any]:
    metadata = header.metadata
    settings = {name: _number(metadata, prefix + key) for key, name in REQUIRED.items()}
    for key, name in OPTIONAL.items():
        if prefix + key in metadata:
            settings[name] = _number(metadata, prefix + key)
    head_dim = settings.get("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
    plain = PLAIN | {"rope.dimension_count": (head_dim,), "attention.value_length": (head_dim,)}
    _refuse_unsupported(header, {prefix + key: values for key, values in plain.items()})
    return settings | {
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "vocab_size": _vocab_size(header),
    }


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


def _refuse_unsupported(header: GgufHeader, plain_values: Mapping[str, tuple[Any, ...]]) -> None:
    for key, plain in plain_values.items():
        value = header.metadata.get(key, plain[0])
        if value not in plain:
            raise ModelError(f"{key} = {value!r} is not supported, only {plain[0]!r}")
    for name in header.tensors:
        if name.startswith("rope_"):
            raise ModelError(f"tensor {name!r}: scaled rotary frequencies (llama3) are not supported")


def _vocab_size(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError("there is no tensor 'token_embd.weight' of two dimensions")
    return embedding.shape[0]
