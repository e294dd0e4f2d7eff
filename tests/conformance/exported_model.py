"""The default model in Hugging Face's layout and in float32: clients tokenize with it and compare with it."""

import json
from pathlib import Path

from legato.core.config import DEFAULT_MODEL
from legato.modelfiles.catalog import resolve
from legato.modelfiles.gguf_header import read_gguf_header
from legato.tokenization.formats.gguf import build_gguf_tokenizer
from legato.tokenization.special_tokens import special_tokens_of_gguf


def export_default_model(folder: Path) -> Path:
    """Write it to `folder`, once. The weights are decoded by transformers, not by our code."""
    if (folder / "tokenizer_config.json").is_file():
        return folder
    path = resolve(DEFAULT_MODEL).path
    _export_weights(path, folder)
    metadata = read_gguf_header(path).metadata
    build_gguf_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
        **{f"{role}_token": text for role, text in special_tokens_of_gguf(metadata).items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _export_weights(path: Path, folder: Path) -> None:
    """As from_pretrained(gguf_file=...) does it, which asks for a further package to do it."""
    from transformers import AutoConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    model = LlamaForCausalLM(config).eval()
    stored = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model.load_state_dict(stored["tensors"], strict=False)
    model.tie_weights()
    model.float().save_pretrained(folder)
