"""Qwen3-MoE: a Qwen3 most of whose MLPs, or all, are mixtures of experts."""

from legato.models.decoder import Layer, decoder_program
from legato.models.decoder_settings import (
    read_decoder,
    read_mixture,
    read_num_layers,
    read_window,
    rope_of,
)
from legato.models.family import Described, Family
from legato.models.names import FUSED_EXPERTS, GGUF_TENSORS, HF_TENSORS, STACKED_EXPERTS, layer_tensors
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    has_bias = settings.flag("attention_bias")
    config = read_decoder(
        settings,
        layers=read_layers(settings),
        has_head_norms=True,
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
    )
    return Described(decoder_program(config), config.max_position)


def read_layers(settings: Settings) -> tuple[Layer, ...]:
    """All attend alike, in a window only if use_sliding_window says so; not all need have experts."""
    window = read_window(settings, default=4096)
    if not settings.flag("use_sliding_window"):
        window = None
    width = settings.whole("moe_intermediate_size", 768)
    is_normalized = settings.flag("norm_topk_prob")
    mixture = read_mixture(settings, width=width, is_normalized=is_normalized, num_experts=128, top_k=8)
    step = settings.whole("decoder_sparse_step", 1)
    dense = settings.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise settings.error(f"mlp_only_layers is {dense!r}, no list of layers")
    rope = rope_of(settings)
    return tuple(
        Layer(rope, window, None if index in dense or (index + 1) % step else mixture)
        for index in range(read_num_layers(settings))
    )


QWEN3_MOE = Family(
    hf_names=("Qwen3MoeForCausalLM", "qwen3_moe"),
    gguf_names=("qwen3moe",),
    describe=describe,
    hf_tensors=HF_TENSORS
    | layer_tensors(
        {
            "router": "mlp.gate",
            **{
                f"experts.{{e}}.{part}": f"mlp.experts.{{e}}.{part}"
                for part in ("gate_proj", "up_proj", "down_proj")
            },
        },
        "model.layers.{i}.",
    ),
    hf_others=(FUSED_EXPERTS,),
    gguf_tensors=GGUF_TENSORS | STACKED_EXPERTS,
)
