"""Doubles that several test folders share."""

import numpy as np

from legato.modelfiles.model_config import ModelConfig
from legato.models.registry import build_program
from legato.program.ops import weights_of


def random_model(
    seed: int, *, num_layers: int = 2, vocab_size: int = 2048, tie_word_embeddings: bool = False
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """A llama of the default model's widths with seeded weights, scaled so that its answers are varied text.

    Every product keeps values near 1 and logits have a standard deviation near 3, as in a trained model.
    """
    config = ModelConfig(
        architecture="llama",
        hidden_size=576,
        intermediate_size=1536,
        num_layers=num_layers,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=vocab_size,
        max_position=2048,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        tie_word_embeddings=tie_word_embeddings,
        eos_ids=frozenset({2}),
    )
    rng = np.random.default_rng(seed)
    weights = {}
    for op in build_program(config).ops:
        for weight in weights_of(op):
            values = rng.standard_normal(weight.shape, dtype=np.float32)
            if len(weight.shape) == 1:
                values = 1 + values / 10
            elif weight.name == "lm_head":
                values *= 3 / np.sqrt(weight.shape[1], dtype=np.float32)
            elif weight.name != "embed_tokens":
                values *= 1 / np.sqrt(weight.shape[1], dtype=np.float32)
            weights[weight.name] = values.astype(np.float32)
    return config, weights
