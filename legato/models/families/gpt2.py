"""GPT-2 and its kin, such as DistilGPT2: matrices that lie [inputs, outputs]."""

from dataclasses import replace

from legato.models.decoder_settings import MAX_LAYERS, read_activation
from legato.models.family import Described, Family
from legato.models.learned_decoder import LearnedDecoderConfig, learned_decoder_program
from legato.models.names import GGUF_TENSORS, layer_tensors, whole_tensors
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    """Settings have names of their own in config.json, but not in a .gguf file."""
    hidden_size = settings.whole(settings.either("n_embd", "hidden_size"))
    num_heads = settings.whole(settings.either("n_head", "num_attention_heads"))
    if hidden_size % (2 * num_heads):
        raise settings.error(f"n_embd {hidden_size} does not divide into {num_heads} even heads")
    settings.refuse("scale_attn_weights", True)
    settings.get("n_ctx")  # an older name of n_positions
    config = LearnedDecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=settings.whole(settings.either("n_inner", "intermediate_size"), 4 * hidden_size),
        embedding_size=hidden_size,
        num_layers=settings.whole(settings.either("n_layer", "num_hidden_layers"), most=MAX_LAYERS),
        num_heads=num_heads,
        vocab_size=settings.whole("vocab_size"),
        max_position=settings.whole(settings.either("n_positions", "max_position_embeddings"), 1024),
        activation=read_activation(settings, "activation_function", "gelu_new"),
        tie_word_embeddings=settings.flag("tie_word_embeddings", True),
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        is_fused=True,
    )
    return Described(learned_decoder_program(config), config.max_position)


_MATRICES = layer_tensors(
    {"qkv_proj": "attn.c_attn", "o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"},
    "transformer.h.{i}.",
)
GPT2 = Family(
    hf_names=("GPT2LMHeadModel", "gpt2"),
    gguf_names=("gpt2",),
    describe=describe,
    hf_tensors=whole_tensors(
        {
            "embed_tokens": "transformer.wte",
            "embed_positions": "transformer.wpe",
            "final_norm": "transformer.ln_f",
            "lm_head": "lm_head",
        }
    )
    | layer_tensors({"input_norm": "ln_1", "mlp_norm": "ln_2"}, "transformer.h.{i}.")
    | {name: replace(each, is_transposed=not name.endswith("_bias")) for name, each in _MATRICES.items()},
    gguf_tensors=GGUF_TENSORS | whole_tensors({"embed_positions": "position_embd"}),
    hf_prefixes=("transformer.", ""),
    harmless=(".attn.bias", ".attn.masked_bias"),  # the causal mask, which some files hold
)
