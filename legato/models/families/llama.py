"""The Llama family: Llama 1 to 3, SmolLM, TinyLlama and others whose config says LlamaForCausalLM."""

from legato.models.decoder import decoder_program
from legato.models.decoder_settings import read_decoder
from legato.models.family import Described, Family
from legato.models.names import GGUF_TENSORS, HF_TENSORS, interleaved
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    """The plain decoder: no norms of q and k, full attention in every layer."""
    has_attention_bias = settings.flag("attention_bias")
    config = read_decoder(
        settings,
        has_qkv_bias=has_attention_bias,
        has_out_bias=has_attention_bias,
        has_mlp_bias=settings.flag("mlp_bias"),
    )
    return Described(decoder_program(config), config.max_position)


LLAMA = Family(
    hf_names=("LlamaForCausalLM", "llama"),
    gguf_names=("llama",),
    describe=describe,
    hf_tensors=HF_TENSORS,
    gguf_tensors=interleaved(GGUF_TENSORS),
    harmless=(".rotary_emb.inv_freq",),  # older checkpoints store what rope_theta says
)
