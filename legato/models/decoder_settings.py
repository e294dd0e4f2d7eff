"""The settings that decoders of every family write alike."""

from collections.abc import Callable
from typing import Any

from legato.models.decoder import DecoderConfig, Layer, Mixture
from legato.models.rope import FULL, SLIDING, read_rope
from legato.models.settings import Settings
from legato.program.ops import Activation, RopeConfig

MAX_LAYERS = 2**12
MAX_HEAD_DIM = 2**14
MAX_EXPERTS = 2**16  # of all layers
ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "relu": Activation.RELU,
}


def read_decoder(settings: Settings, *, is_tied: bool = False, **parts: Any) -> DecoderConfig:
    """What is common; `parts` are fields of DecoderConfig that the family reads or knows itself.

    is_tied  whether its embeddings are unless the settings say otherwise
    Raises ModelError for numbers that cannot belong together.
    """
    num_heads = settings.whole("num_attention_heads")
    num_kv_heads = settings.whole("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise settings.error(f"{num_heads} heads cannot share {num_kv_heads} K/V heads evenly")
    head_dim = read_head_dim(settings)
    layers = parts.get("layers") or read_layers(settings, rope_of(settings))
    common: dict[str, Any] = {
        "hidden_size": settings.whole("hidden_size"),
        "intermediate_size": settings.whole("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": settings.whole("vocab_size"),
        "max_position": min(
            (layer.rope.max_position for layer in layers if layer.rope), default=read_max_position(settings)
        ),
        "layers": layers,
        "norm_eps": settings.number("rms_norm_eps", 1e-6),
        "activation": read_activation(settings, "hidden_act", "silu"),
        "tie_word_embeddings": settings.flag("tie_word_embeddings", is_tied),
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


def read_num_layers(settings: Settings) -> int:
    return settings.whole("num_hidden_layers", most=MAX_LAYERS)


def read_max_position(settings: Settings) -> int:
    return settings.whole("max_position_embeddings", 2048)


def read_activation(settings: Settings, name: str, default: str) -> Activation:
    return ACTIVATIONS[settings.choice(name, ACTIVATIONS, default)]


def rope_of(settings: Settings, **details: Any) -> RopeConfig:
    """The rotation of all layers, or of those that `details` of read_rope are about."""
    return read_rope(settings, read_head_dim(settings), read_max_position(settings), **details)


def read_layers(
    settings: Settings,
    rope: RopeConfig,
    *,
    window: int | None = None,
    local_rope: RopeConfig | None = None,
    is_local: Callable[[int], bool] = lambda layer: False,
) -> tuple[Layer, ...]:
    """Layers of two kinds: those that see all, and those of `window` and `local_rope`.

    is_local    which these are, where layer_types does not say
    local_rope  None: `rope`
    """
    num_layers = read_num_layers(settings)
    by_rule = [SLIDING if is_local(each) else FULL for each in range(num_layers)]
    kinds = settings.each("layer_types", (FULL, SLIDING), by_rule)
    local = Layer(local_rope or rope, window)
    return tuple(local if kind == SLIDING else Layer(rope) for kind in kinds)


def read_window(settings: Settings, *, default: int | None = None) -> int | None:
    """sliding_window; null, and 0, mean none."""
    if not settings.has("sliding_window"):
        return default
    return None if settings.get("sliding_window") in (None, 0) else settings.whole("sliding_window")


def read_mixture(
    settings: Settings, *, width: int, is_normalized: bool, num_experts: int, top_k: int
) -> Mixture:
    """The experts of a layer that has some; their number goes by two names in either family.

    num_experts, top_k  where the settings do not say
    """
    name, other = "num_experts", settings.get("num_local_experts")
    if settings.get(name) is None:
        name = "num_local_experts"
    elif other is not None:
        settings.refuse(name, other)
    num_layers = read_num_layers(settings)
    num_experts = settings.whole(name, num_experts, most=MAX_EXPERTS)
    if num_layers * num_experts > MAX_EXPERTS:
        raise settings.error(
            f"{name} is {num_experts} in {num_layers} layers: more than {MAX_EXPERTS} in all"
        )
    top_k = settings.whole("num_experts_per_tok", top_k, most=num_experts)
    return Mixture(num_experts=num_experts, top_k=top_k, width=width, is_normalized=is_normalized)
