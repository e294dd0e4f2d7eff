"""A byte-level BPE tokenizer from the metadata of a .gguf file."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import Texts

REMEDY = "Give a directory with a tokenizer.json by --tokenizer"


class TokenType(IntEnum):
    """The kinds in `tokenizer.ggml.token_type` that are matched before the text is split."""

    CONTROL = 3
    USER_DEFINED = 4


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `tokenizer.ggml.*` describes.

    Raises ModelError when it is of another kind than byte-level BPE, or its lists do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"tokenizer.ggml.model is {kind!r}; of .gguf tokenizers only gpt2 is read. {REMEDY}")
    split = _splitter(metadata.get("tokenizer.ggml.pre", "default"))
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelError("tokenizer.ggml.tokens holds a token twice")
    merges = _texts(metadata, "tokenizer.ggml.merges")
    try:
        tokenizer = Tokenizer(models.BPE(vocab, [_pair(merge) for merge in merges]))
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from error
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(types, list) or len(types) not in (0, len(tokens)):
        raise ModelError("tokenizer.ggml.token_type does not fit the vocabulary")
    for token, token_type in zip(tokens, types, strict=False):
        if token_type == TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def _splitter(name: str) -> pre_tokenizers.PreTokenizer:
    """How a text is split before merging; the names are llama.cpp's."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name in ("gpt-2", "default"):
        return byte_level
    raise ModelError(f"tokenizer.ggml.pre is {name!r}; smollm, gpt-2 and default are read. {REMEDY}")


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list | Texts) or not all(isinstance(text, str) for text in value):
        raise ModelError(f"the header has no list of texts {key}")
    return list(value)
