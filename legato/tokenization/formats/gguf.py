"""A tokenizer from the metadata of a .gguf file."""

import logging
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, models, processors

from legato.core.errors import ModelError, brief
from legato.modelfiles.gguf_header import Texts
from legato.tokenization.formats.sentencepiece import PieceType, add_marked_tokens, build_sentencepiece
from legato.tokenization.formats.splits import splitting_named

REMEDY = "Give a directory with a tokenizer.json by --tokenizer"
STRIPPING_ARCHITECTURE = "phi3"  # whose special tokens swallow the spaces behind them

logger = logging.getLogger(__name__)


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `tokenizer.ggml.*` describes; it puts bos and eos where the file says so.

    Raises ModelError when it is of a kind that is not read, or its lists do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            tokenizer, adds_bos = _byte_level(metadata)
        elif kind == "llama":
            tokenizer, adds_bos = _sentencepiece(metadata), True
        else:
            raise ModelError(f"tokenizer.ggml.model is {kind!r}; of .gguf tokenizers gpt2 and llama are read")
    except ModelError as error:
        raise ModelError(f"{brief(error)}. {REMEDY}") from error
    _add_ends(tokenizer, metadata, adds_bos)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any]) -> tuple[Tokenizer, bool]:
    if "tokenizer.ggml.pre" not in metadata:
        logger.warning("the file does not say how its tokenizer splits a text: it is split as GPT-2 does it")
    splitting = splitting_named(metadata.get("tokenizer.ggml.pre", "default"))
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelError("tokenizer.ggml.tokens holds a token twice")
    merges = _texts(metadata, "tokenizer.ggml.merges")
    try:
        model = models.BPE(
            vocab, [_pair(merge) for merge in merges], ignore_merges=splitting.takes_whole_words
        )
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from error
    tokenizer = Tokenizer(model)
    if splitting.is_composed:
        tokenizer.normalizer = splitting.normalizer()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    add_marked_tokens(tokenizer, tokens, _types(metadata, len(tokens)))
    return tokenizer, splitting.adds_bos


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list):
        raise ModelError("the header has no list of numbers tokenizer.ggml.scores")
    return build_sentencepiece(
        tokens,
        scores,
        _types(metadata, len(tokens)),
        add_space_prefix=metadata.get("tokenizer.ggml.add_space_prefix", True) is not False,
        rstripped=metadata.get("general.architecture") == STRIPPING_ARCHITECTURE,
    )


def _types(metadata: Mapping[str, Any], num_tokens: int) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type") or [PieceType.NORMAL] * num_tokens
    if not isinstance(types, list) or len(types) != num_tokens:
        raise ModelError("tokenizer.ggml.token_type does not fit the vocabulary")
    return types


def _add_ends(tokenizer: Tokenizer, metadata: Mapping[str, Any], adds_bos: bool) -> None:
    """Have the tokenizer put bos before a text, and eos behind it, where the file says so."""
    ids = {}
    for role, by_default in (("bos", adds_bos), ("eos", False)):
        token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
        is_added = metadata.get(f"tokenizer.ggml.add_{role}_token", by_default)
        if is_added and isinstance(token_id, int) and 0 <= token_id < tokenizer.get_vocab_size():
            ids[role] = token_id
    if ids:
        template = ["bos"] * ("bos" in ids) + ["$A"] + ["eos"] * ("eos" in ids)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=list(ids.items())
        )


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list | Texts) or not all(isinstance(text, str) for text in value):
        raise ModelError(f"the header has no list of texts {key}")
    return list(value)
