"""A small random model on disk, in Hugging Face layout, for tests with real processes."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from legato.modelfiles.hf_config import read_hf_config
from legato.weights.loader import expected_shapes
from legato.weights.names import HF_NAMES, layer_names
from tests.model_builders import TINY_LLAMA, write_json
from tests.tokenization.tiny_tokenizers import byte_level_backend

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MAX_MODEL_LEN = 512


def write_tiny_model(
    folder: Path, *, has_tokenizer: bool = True, chat_template: str | None = CHAT_TEMPLATE
) -> Path:
    """Two layers, a vocabulary of bytes and a few pieces, weights that make varied answers."""
    tokenizer = byte_level_backend()
    config = TINY_LLAMA | {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": MAX_MODEL_LEN,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id("<|end|>"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if has_tokenizer:
        tokenizer.save(str(folder / "tokenizer.json"))
        write_json(
            folder / "tokenizer_config.json", {"chat_template": chat_template} if chat_template else {}
        )
    shapes = expected_shapes(read_hf_config(folder))
    random = np.random.default_rng(3)
    tensors = {}
    for canonical, name in layer_names(HF_NAMES, config["num_hidden_layers"]).items():
        shape = shapes[canonical.rpartition(".")[2]]
        values = random.standard_normal(shape, dtype=np.float32)
        scale = 2.0 if canonical == "lm_head" else 1.0
        tensors[name] = values * np.float32(scale / shape[-1] ** 0.5) if len(shape) == 2 else 1 + values / 10
    save_file(tensors, folder / "model.safetensors")
    return folder
