"""Tokenizers of a few hundred tokens: one over bytes, one with byte fallback."""

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from legato.tokenization.tokenizer import BYTE_OF_CHAR, Tokenizer

CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
PIECES = [
    "ab",
    "abc",
    "bca",
    " the",
    " end",
    "\n\n",
    "한",
    "한국",
    "🧑‍🚀",
    "é",
    "e\u0301",
    "stop",
    "STOP",
]


def spell(data: bytes) -> str:
    return "".join(CHAR_OF_BYTE[byte] for byte in data)


def byte_level_backend() -> tokenizers.Tokenizer:
    """Ids 0 to 255 are the bytes; then PIECES, and cuts inside characters; then <|end|> and <tool 한>."""
    cuts = ["한".encode()[:2], "한".encode()[2:] + "국".encode()[:1], "🧑".encode()[1:]]
    tokens = [spell(bytes([byte])) for byte in range(256)]
    tokens += [spell(piece.encode()) for piece in PIECES] + [spell(cut) for cut in cuts]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    backend.add_tokens([AddedToken("<tool 한>", normalized=False)])
    return backend


def byte_level_tokenizer(add_bos: bool | None = None) -> Tokenizer:
    return Tokenizer(byte_level_backend(), {"bos": "<|end|>", "eos": "<|end|>"}, add_bos)


def byte_fallback_tokenizer() -> Tokenizer:
    """As SentencePiece makes them: ▁ for a space, characters outside the vocabulary as bytes."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", *"abcdefgh.,\n"]
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, {"bos": "<s>", "eos": "</s>"}, True)
