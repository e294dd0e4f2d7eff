"""Granite 3: a Llama whose embeddings, scores, blocks and logits are scaled by constants of its own."""

from legato.models.decoder import decoder_program
from legato.models.decoder_settings import read_decoder
from legato.models.family import Described, Family
from legato.models.names import GGUF_TENSORS, HF_TENSORS, interleaved
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    has_attention_bias = settings.flag("attention_bias")
    config = read_decoder(
        settings,
        attention_scale=settings.number("attention_multiplier", 1.0),
        embedding_scale=settings.number("embedding_multiplier", 1.0),
        residual_scale=settings.number("residual_multiplier", 1.0),
        logits_scale=1 / settings.number("logits_scaling", 1.0),
        has_qkv_bias=has_attention_bias,
        has_out_bias=has_attention_bias,
        has_mlp_bias=settings.flag("mlp_bias"),
    )
    return Described(decoder_program(config), config.max_position)


GRANITE = Family(
    hf_names=("GraniteForCausalLM", "granite"),
    gguf_names=("granite",),
    describe=describe,
    hf_tensors=HF_TENSORS,
    gguf_tensors=interleaved(GGUF_TENSORS),
)
