"""The settings that decoders of every family write alike."""

from typing import Any

from legato.models.decoder import DecoderConfig, Layer
from legato.models.rope import read_rope
from legato.models.settings import Settings
from legato.program.ops import Activation

MAX_LAYERS = 2**12
MAX_HEAD_DIM = 2**14
ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "relu": Activation.RELU,
}


def read_decoder(settings: Settings, **parts: Any) -> DecoderConfig:
    """What is common; `parts` are fields of DecoderConfig that the family reads or knows itself.

    Raises ModelError for numbers that cannot belong together.
    """
    hidden_size, num_heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    num_kv_heads = settings.whole("num_key_value_heads", num_heads)
    head_dim = read_head_dim(settings)
    if num_heads % num_kv_heads:
        raise settings.error(f"{num_heads} heads cannot share {num_kv_heads} K/V heads evenly")
    max_position = settings.whole("max_position_embeddings", 2048)
    rope = read_rope(settings, head_dim, max_position)
    common: dict[str, Any] = {
        "hidden_size": hidden_size,
        "intermediate_size": settings.whole("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": settings.whole("vocab_size"),
        "max_position": rope.max_position,
        "layers": (Layer(rope),) * settings.whole("num_hidden_layers", most=MAX_LAYERS),
        "norm_eps": settings.number("rms_norm_eps", 1e-6),
        "activation": ACTIVATIONS[settings.choice("hidden_act", ACTIVATIONS, "silu")],
        "tie_word_embeddings": settings.flag("tie_word_embeddings"),
        "attention_scale": head_dim**-0.5,
    }
    return DecoderConfig(**common | parts)


def read_head_dim(settings: Settings) -> int:
    """As it is given, else an equal share of hidden_size."""
    hidden_size, num_heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    if settings.get("head_dim") is None and hidden_size % num_heads:
        raise settings.error(f"hidden_size {hidden_size} does not divide into {num_heads} heads")
    head_dim = settings.whole("head_dim", hidden_size // num_heads, most=MAX_HEAD_DIM)
    if head_dim % 2:
        raise settings.error(f"head_dim is {head_dim}; an even one is needed")
    return head_dim
