"""SmolLM3: a Llama of which every fourth layer does not encode positions."""

from dataclasses import replace

from legato.models.decoder import decoder_program
from legato.models.decoder_settings import read_decoder, read_layers, read_num_layers, read_window, rope_of
from legato.models.family import Described, Family
from legato.models.names import GGUF_TENSORS, HF_TENSORS, interleaved
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    num_layers = read_num_layers(settings)
    interval = settings.whole("no_rope_layer_interval", 4)
    by_rule = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    has_rope = settings.each(
        "no_rope_layers", (0, 1), by_rule
    )  # 1 where there is one, whatever the name says
    window = read_window(settings) if settings.flag("use_sliding_window") else None
    settings.get("sliding_window")  # has no meaning without the flag
    layers = read_layers(
        settings,
        rope_of(settings, default_theta=2_000_000.0),
        window=window,
        is_local=lambda layer: window is not None and not has_rope[layer],
    )
    has_attention_bias = settings.flag("attention_bias")
    config = read_decoder(
        settings,
        is_tied=True,
        layers=tuple(
            layer if rotates else replace(layer, rope=None)
            for layer, rotates in zip(layers, has_rope, strict=True)
        ),
        has_qkv_bias=has_attention_bias,
        has_out_bias=has_attention_bias,
        has_mlp_bias=settings.flag("mlp_bias"),
    )
    return Described(decoder_program(config), config.max_position)


SMOLLM3 = Family(
    hf_names=("SmolLM3ForCausalLM", "smollm3"),
    gguf_names=("smollm3",),
    describe=describe,
    hf_tensors=HF_TENSORS,
    gguf_tensors=interleaved(GGUF_TENSORS),
)
