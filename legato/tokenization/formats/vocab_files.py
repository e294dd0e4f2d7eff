"""A byte-level tokenizer from vocab.json and merges.txt, as GPT-2, OPT and early Qwen2 folders have them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models

from legato.core.errors import ModelError, brief
from legato.modelfiles.hf_config import read_json, read_json_if_present
from legato.modelfiles.model_config import MAX_SIZE
from legato.tokenization.formats.splits import Splitting, splitting_named

REMEDY = "load it with transformers and save it to get a tokenizer.json"
SPLITTING_OF_CLASS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
NEUTRAL_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")  # which say nothing of how a text is split
QWEN2_MODELS = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")


def build_from_vocab_files(folder: Path) -> Tokenizer:
    """Raises ModelError, naming the file, when one is malformed or of a class that splits otherwise."""
    settings = read_json_if_present(folder / "tokenizer_config.json")
    splitting = _splitting(folder, settings)
    vocab: dict[str, Any] = read_json(folder / "vocab.json")
    if not all(type(token_id) is int and 0 <= token_id < MAX_SIZE for token_id in vocab.values()):
        raise ModelError(f"{folder / 'vocab.json'} does not give every token an id below {MAX_SIZE}")
    try:
        tokenizer = Tokenizer(models.BPE(vocab, _merges(folder / "merges.txt")))
    except ModelError:
        raise
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"{folder / 'merges.txt'} does not fit vocab.json: {error}") from error
    if splitting.is_composed:
        tokenizer.normalizer = splitting.normalizer()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer(settings.get("add_prefix_space") is True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _splitting(folder: Path, settings: Mapping[str, Any]) -> Splitting:
    name = str(settings.get("tokenizer_class") or NEUTRAL_CLASSES[0]).removesuffix("Fast")
    if name in NEUTRAL_CLASSES:
        model_type = read_json_if_present(folder / "config.json").get("model_type")
        name = "Qwen2Tokenizer" if model_type in QWEN2_MODELS else "GPT2Tokenizer"
    if name not in SPLITTING_OF_CLASS:
        raise ModelError(
            f"{folder}: tokenizer_class is {brief(repr(name))}; vocab.json and merges.txt are read of"
            f" {' and '.join(SPLITTING_OF_CLASS)}: {REMEDY}"
        )
    return splitting_named(SPLITTING_OF_CLASS[name])


def _merges(file: Path) -> list[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # other line ends may stand in a token
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {file}: {error}") from error
    merges = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#version") or not line.strip():
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise ModelError(f"{file}: line {number} is not two tokens with a space between them")
        merges.append((pair[0], pair[1]))
    return merges
