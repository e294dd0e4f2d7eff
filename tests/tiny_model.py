"""A small random model on disk, in Hugging Face layout, for tests with real processes."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from legato.modelfiles.hf_config import read_hf_config
from legato.models.registry import build_model
from legato.program.ops import weights_of
from tests.model_builders import TINY_LLAMA, write_json
from tests.tokenization.tiny_tokenizers import byte_level_backend

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MAX_MODEL_LEN = 512
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}


def write_tiny_model(
    folder: Path,
    *,
    has_tokenizer: bool = True,
    chat_template: str | None = CHAT_TEMPLATE,
    seed: int = 3,
    **changes: Any,
) -> Path:
    """Two layers, a vocabulary of bytes and a few pieces, weights that make varied answers.

    changes  settings of its config: those of MIXTRAL make it one
    """
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
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if has_tokenizer:
        tokenizer.save(str(folder / "tokenizer.json"))
        write_json(
            folder / "tokenizer_config.json", {"chat_template": chat_template} if chat_template else {}
        )
    model = build_model(read_hf_config(folder))
    random = np.random.default_rng(seed)
    tensors = {}
    for weight in dict.fromkeys(weight for op in model.program.ops for weight in weights_of(op)):
        values = random.standard_normal(weight.shape, dtype=np.float32)
        scale = 2.0 if weight.name == "lm_head" else 1.0
        is_matrix = len(weight.shape) == 2
        scaled = values * np.float32(scale / weight.shape[-1] ** 0.5) if is_matrix else 1 + values / 10
        tensors[model.tensors.of(weight.name, "model.").name] = scaled
    save_file(tensors, folder / "model.safetensors")
    return folder
