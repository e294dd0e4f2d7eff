"""The settings of a model in a .gguf file, from its header alone."""

from pathlib import Path
from typing import Any

from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import GgufHeader, read_gguf_header
from legato.modelfiles.model_config import ModelConfig

BOS_KEY = "tokenizer.ggml.bos_token_id"
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def read_gguf_config(path: Path) -> ModelConfig:
    """Read a .gguf file; see read_model_config. Key names: the GGUF specification."""
    header = read_gguf_header(path)
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{path}: the architecture is {architecture!r}; of .gguf files only llama is served")
    num_heads = _required(header, "llama.attention.head_count")
    hidden_size = _required(header, "llama.embedding_length")
    head_dim = metadata.get("llama.attention.key_length", hidden_size // num_heads)
    _refuse_unsupported(header, head_dim)
    return ModelConfig(
        architecture="llama",
        hidden_size=hidden_size,
        intermediate_size=_required(header, "llama.feed_forward_length"),
        num_layers=_required(header, "llama.block_count"),
        num_heads=num_heads,
        num_kv_heads=metadata.get("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(header),
        max_position=_required(header, "llama.context_length"),
        rms_norm_eps=_required(header, "llama.attention.layer_norm_rms_epsilon"),
        rope_theta=metadata.get("llama.rope.freq_base", 10000.0),
        tie_word_embeddings="output.weight" not in header.tensors,
        eos_ids=frozenset(_token_id(header, key) for key in EOS_KEYS if key in metadata),
        bos_id=_token_id(header, BOS_KEY) if BOS_KEY in metadata else None,
    )


def _required(header: GgufHeader, key: str) -> Any:
    value = header.metadata.get(key)
    if not isinstance(value, int | float) or not value > 0:
        raise ModelError(f"the header's {key} is {value!r}, not one positive number")
    return value


def _token_id(header: GgufHeader, key: str) -> int:
    value = header.metadata[key]
    if type(value) is not int or value < 0:
        raise ModelError(f"the header's {key} is {value!r}, not a token id")
    return value


def _refuse_unsupported(header: GgufHeader, head_dim: int) -> None:
    plain_values: dict[str, tuple[Any, ...]] = {
        "llama.rope.scaling.type": ("none",),
        "llama.rope.scale_linear": (1.0,),
        "llama.rope.scaling.factor": (1.0, 0.0),
        "llama.rope.dimension_count": (head_dim,),
        "llama.attention.value_length": (head_dim,),
        "llama.attention.sliding_window": (0,),
        "llama.expert_count": (0,),
    }
    for key, plain in plain_values.items():
        value = header.metadata.get(key, plain[0])
        if value not in plain:
            raise ModelError(f"{key} = {value!r} is not supported, only {plain[0]!r}")
    for name in header.tensors:
        if name.endswith(".bias"):
            raise ModelError(f"tensor {name!r}: biases are not supported")
        if name.startswith("rope_"):
            raise ModelError(f"tensor {name!r}: scaled rotary frequencies (llama3) are not supported")


def _vocab_size(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError("there is no tensor 'token_embd.weight' of two dimensions")
    return embedding.shape[0]
