"""The Llama family: Llama 1 to 3, SmolLM, TinyLlama and others whose config says LlamaForCausalLM."""

from legato.modelfiles.model_config import ModelConfig
from legato.models.decoder import DecoderConfig, decoder_program
from legato.program.ops import Program, RopeConfig


def llama_program(config: ModelConfig) -> Program:
    """The plain decoder: no biases, no norms of q and k, full attention in every layer."""
    return decoder_program(
        DecoderConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.rms_norm_eps,
            rope=RopeConfig(config.head_dim, config.rope_theta, config.max_position),
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
