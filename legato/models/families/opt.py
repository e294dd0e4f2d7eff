"""OPT: learned positions from row 2 on, and in its 350M size post-norms and projected embeddings."""

from legato.models.decoder_settings import read_activation, read_num_layers
from legato.models.family import Described, Family
from legato.models.learned_decoder import LearnedDecoderConfig, learned_decoder_program
from legato.models.names import layer_tensors, whole_tensors
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    hidden_size, num_heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    if hidden_size % (2 * num_heads):
        raise settings.error(f"hidden_size {hidden_size} does not divide into {num_heads} even heads")
    settings.refuse("layer_norm_elementwise_affine", True)
    config = LearnedDecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=settings.whole("ffn_dim"),
        embedding_size=settings.whole("word_embed_proj_dim", hidden_size),
        num_layers=read_num_layers(settings),
        num_heads=num_heads,
        vocab_size=settings.whole("vocab_size"),
        max_position=settings.whole("max_position_embeddings", 2048),
        activation=read_activation(settings, "activation_function", "relu"),
        tie_word_embeddings=settings.flag("tie_word_embeddings", True),
        position_offset=2,
        has_bias=settings.flag("enable_bias", True),
        is_post_norm=not settings.flag("do_layer_norm_before", True),
    )
    return Described(learned_decoder_program(config), config.max_position)


_DECODER = "model.decoder."
OPT = Family(
    hf_names=("OPTForCausalLM", "opt"),
    describe=describe,
    hf_tensors=whole_tensors(
        {
            "embed_tokens": f"{_DECODER}embed_tokens",
            "embed_positions": f"{_DECODER}embed_positions",
            "project_in": f"{_DECODER}project_in",
            "project_out": f"{_DECODER}project_out",
            "final_norm": f"{_DECODER}final_layer_norm",
            "lm_head": "lm_head",
        }
    )
    | layer_tensors(
        {
            "input_norm": "self_attn_layer_norm",
            "q_proj": "self_attn.q_proj",
            "k_proj": "self_attn.k_proj",
            "v_proj": "self_attn.v_proj",
            "o_proj": "self_attn.out_proj",
            "mlp_norm": "final_layer_norm",
            "up_proj": "fc1",
            "down_proj": "fc2",
        },
        f"{_DECODER}layers.{{i}}.",
    ),
    hf_prefixes=(_DECODER, "decoder.", ""),
)
