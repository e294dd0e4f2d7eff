"""Qwen2 and 2.5, with biases on q, k and v, and Qwen3, with norms on the heads of q and k instead."""

from legato.models.decoder import Layer, decoder_program
from legato.models.decoder_settings import read_decoder, read_layers, read_window, rope_of
from legato.models.family import Described, Family
from legato.models.names import GGUF_TENSORS, HF_TENSORS
from legato.models.settings import Settings


def qwen_layers(settings: Settings) -> tuple[Layer, ...]:
    """The last layers attend in a window, but only if use_sliding_window says so."""
    window = read_window(settings, default=4096)
    if not settings.flag("use_sliding_window"):
        window = None
    first = settings.whole("max_window_layers", 28, least=0)
    return read_layers(
        settings,
        rope_of(settings),
        window=window,
        is_local=lambda layer: window is not None and layer >= first,
    )


def describe_qwen2(settings: Settings) -> Described:
    has_bias = settings.flag("attention_bias", True)
    config = read_decoder(settings, layers=qwen_layers(settings), has_qkv_bias=has_bias)
    return Described(decoder_program(config), config.max_position)


def describe_qwen3(settings: Settings) -> Described:
    has_bias = settings.flag("attention_bias")
    config = read_decoder(
        settings,
        layers=qwen_layers(settings),
        has_head_norms=True,
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
    )
    return Described(decoder_program(config), config.max_position)


QWEN2 = Family(
    hf_names=("Qwen2ForCausalLM", "qwen2"),
    gguf_names=("qwen2",),
    describe=describe_qwen2,
    hf_tensors=HF_TENSORS,
    gguf_tensors=GGUF_TENSORS,
)
QWEN3 = Family(
    hf_names=("Qwen3ForCausalLM", "qwen3"),
    gguf_names=("qwen3",),
    describe=describe_qwen3,
    hf_tensors=HF_TENSORS,
    gguf_tensors=GGUF_TENSORS,
)
