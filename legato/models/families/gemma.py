"""Gemma 2 and the text of Gemma 3: norms before and after each block, most layers in a window."""

from dataclasses import replace
from typing import Any

from legato.models.decoder import Layer, decoder_program
from legato.models.decoder_settings import (
    read_activation,
    read_decoder,
    read_head_dim,
    read_layers,
    read_window,
    rope_of,
)
from legato.models.family import Described, Family
from legato.models.names import (
    GGUF_TENSORS,
    HF_PREFIXES,
    HF_TENSORS,
    IMAGE_TENSORS,
    adding_one,
    layer_tensors,
)
from legato.models.rope import rope_parameters_by_kind
from legato.models.settings import Settings


def describe_gemma2(settings: Settings) -> Described:
    """Every second layer in a window, scores and logits capped."""
    window = read_window(settings, default=4096)
    layers = read_layers(settings, rope_of(settings), window=window, is_local=lambda layer: layer % 2 == 0)
    cap = _read_cap(settings, "attn_logit_softcapping", 50.0)
    return _describe(settings, layers, attention_cap=cap, logits_cap=30.0, layers_of_27b=46)


def describe_gemma3(settings: Settings) -> Described:
    """Five layers in six in a window, with a rotation of their own; heads of q and k are normed."""
    window = read_window(settings, default=4096)
    pattern = settings.whole(settings.either("sliding_window_pattern", "_sliding_window_pattern"), 6)
    whole, local = rope_parameters_by_kind(settings)
    local_theta = settings.number("rope_local_base_freq", 10_000.0)
    layers = read_layers(
        settings,
        rope_of(settings, parameters=whole, default_theta=1_000_000.0),
        window=window,
        local_rope=rope_of(settings, parameters={"rope_theta": local_theta, **local}),
        is_local=lambda layer: (layer + 1) % pattern != 0,
    )
    return _describe(settings, layers, has_head_norms=True, layers_of_27b=62)


def _describe(
    settings: Settings, layers: tuple[Layer, ...], *, layers_of_27b: int, **parts: Any
) -> Described:
    has_bias = settings.flag("attention_bias")
    settings.refuse("use_bidirectional_attention", False)
    settings.get("hidden_act")  # an older name, which decides nothing: files have it beside hidden_activation
    hidden_size = settings.whole("hidden_size")
    unit = read_head_dim(settings)
    if len(layers) == layers_of_27b:  # a .gguf file does not say it
        unit = hidden_size // settings.whole("num_attention_heads")
    parts["logits_cap"] = _read_cap(settings, "final_logit_softcapping", parts.get("logits_cap"))
    config = read_decoder(
        settings,
        is_tied=True,
        layers=layers,
        activation=read_activation(settings, "hidden_activation", "gelu_pytorch_tanh"),
        attention_scale=settings.number("query_pre_attn_scalar", unit) ** -0.5,
        embedding_scale=hidden_size**0.5,
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        has_output_norms=True,
        **parts,
    )
    return Described(decoder_program(config), config.max_position)


def _read_cap(settings: Settings, name: str, default: float | None) -> float | None:
    """null means none."""
    return settings.optional_number(name) if settings.has(name) else default


_NORMS = {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
_HF_TENSORS = adding_one(
    {**HF_TENSORS, **layer_tensors(_NORMS, "model.layers.{i}.")},
    ["final_norm", *(f"layers.{{i}}.{name}" for name in ("input_norm", "q_norm", "k_norm", *_NORMS))],
)
GEMMA2 = Family(
    hf_names=("Gemma2ForCausalLM", "gemma2"),
    gguf_names=("gemma2",),
    describe=describe_gemma2,
    hf_tensors=_HF_TENSORS,
    gguf_tensors=GGUF_TENSORS,  # 1 is added already
)
GEMMA3 = replace(
    GEMMA2,
    hf_names=("Gemma3ForCausalLM", "gemma3_text", "Gemma3ForConditionalGeneration"),
    gguf_names=("gemma3",),
    describe=describe_gemma3,
    hf_prefixes=HF_PREFIXES,
    harmless=IMAGE_TENSORS,
)
