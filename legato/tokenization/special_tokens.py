"""The texts of a model's special tokens, which its chat template may name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.modelfiles.gguf_header import Texts
from legato.modelfiles.hf_config import read_json_if_present, token_text

ROLES = ("bos", "eos", "unk", "pad")
_GGUF_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
}


def special_tokens_of_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Role -> text, e.g. {"eos": "<|im_end|>"}, from a GGUF header."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list | Texts):
        return {}
    ids = {role: metadata.get(key) for role, key in _GGUF_KEYS.items()}
    return {role: tokens[i] for role, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def special_tokens_of_folder(folder: Path) -> dict[str, str]:
    """Role -> text, from tokenizer_config.json, else from the older special_tokens_map.json."""
    settings = read_json_if_present(folder / "special_tokens_map.json")
    settings |= read_json_if_present(folder / "tokenizer_config.json")
    texts = {role: token_text(settings.get(f"{role}_token")) for role in ROLES}
    return {role: text for role, text in texts.items() if text is not None}
