"""A tokenizer from SentencePiece's pieces and their scores, as .gguf files and tokenizer.model list them."""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from legato.core.errors import ModelError

SPACE = "▁"  # how a piece writes a space
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]  # for characters that no piece has


class PieceType(IntEnum):
    """What a token is for. .gguf files number tokens of every kind of tokenizer as SentencePiece does."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build_sentencepiece(
    pieces: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    add_space_prefix: bool,
    rstripped: bool = False,
) -> Tokenizer:
    """The tokenizer of a SentencePiece model of the kind "bpe", which falls back to bytes.

    add_space_prefix  a text, and what follows a special token, begins as if there were a space before it
    rstripped         special tokens swallow the spaces behind them
    Raises ModelError when the lists do not fit together, or the pieces lack some byte.
    """
    if not len(pieces) == len(scores) == len(types):
        raise ModelError(f"{len(pieces)} tokens have {len(scores)} scores and {len(types)} types")
    pieces = [_spelled(piece, kind) for piece, kind in zip(pieces, types, strict=True)]
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    if len(vocab) != len(pieces):
        raise ModelError("the vocabulary holds a token twice")
    if missing := [piece for piece in BYTE_PIECES if piece not in vocab]:
        raise ModelError(f"the vocabulary lacks {missing[0]}: characters without a token cannot be written")
    unknown = next((p for p, kind in zip(pieces, types, strict=True) if kind == PieceType.UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            _merges(_mergeable(pieces, scores, types)),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = _normalizer(add_space_prefix)
    tokenizer.decoder = _decoder(add_space_prefix)
    add_marked_tokens(tokenizer, pieces, types, rstripped=rstripped)
    return tokenizer


def add_marked_tokens(
    tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int], *, rstripped: bool = False
) -> None:
    """Have the tokens that are no plain text found wherever they stand, before the text is split.

    All of a kind are given to the library at once, since it prepares its search anew each time.
    """
    typed = list(zip(tokens, types, strict=True))
    special = [token for token, kind in typed if kind in (PieceType.CONTROL, PieceType.UNKNOWN)]
    plain = [token for token, kind in typed if kind == PieceType.USER_DEFINED and token.strip(SPACE)]
    opening = ("<unk>", "<s>", "<|endoftext|>")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=rstripped and token not in opening)
            for token in special
        ]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])


def _spelled(piece: str, kind: int) -> str:
    """A run of spaces that is one token: .gguf files write it as spaces, and the text has marks there."""
    is_run = kind == PieceType.USER_DEFINED and len(piece) > 1 and not piece.strip(" ")
    return SPACE * len(piece) if is_run else piece


def _mergeable(pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> dict[str, float]:
    """Pieces that are merged from others, with their scores: runs of spaces before all others."""
    ranked = {}
    for piece, score, kind in zip(pieces, scores, types, strict=True):
        if kind == PieceType.NORMAL:
            ranked[piece] = score
        elif kind == PieceType.USER_DEFINED and not piece.strip(SPACE):
            ranked[piece] = float("inf")
    return ranked


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best piece first; of its pairs the longest left part."""
    merges = []
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):  # of equal ones, the first in the list
        for cut in range(len(piece) - 1, 0, -1):
            if (left := piece[:cut]) in scores and (right := piece[cut:]) in scores:
                merges.append((left, right))
    return merges


def _normalizer(add_space_prefix: bool) -> normalizers.Normalizer:
    marks = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), marks]) if add_space_prefix else marks


def _decoder(add_space_prefix: bool) -> decoders.Decoder:
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space_prefix else steps)
