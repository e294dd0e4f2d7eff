"""Text to token ids and back, over the `tokenizers` library."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tokenizers

from legato.core.errors import ModelError, RequestError, brief
from legato.modelfiles.gguf_header import read_gguf_header
from legato.modelfiles.hf_config import read_json_if_present
from legato.modelfiles.tokenizer_file import keep_tokenizer, tokenizer_file, tokenizer_parts
from legato.tokenization.formats.added_tokens import add_listed_tokens
from legato.tokenization.formats.gguf import build_gguf_tokenizer
from legato.tokenization.formats.sentencepiece_file import build_from_sentencepiece_file
from legato.tokenization.formats.vocab_files import build_from_vocab_files
from legato.tokenization.special_tokens import special_tokens_of_folder, special_tokens_of_gguf

OTHER_FORMATS = ("spiece.model", "tiktoken.model", "tekken.json")
BOS_BY_DEFAULT = ("opt",)  # models whose prompts begin with bos, though older folders do not say so

logger = logging.getLogger(__name__)


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # how a vocabulary with byte fallback writes a byte


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    special_tokens  role -> text, e.g. {"eos": "<|im_end|>"}
    add_bos         whether encode puts the bos token first; None leaves it to the tokenizer's own processor
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        add_bos: bool | None = None,
    ) -> None:
        backend.no_truncation()  # a tokenizer.json may carry both from its training
        backend.no_padding()
        self._backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.bos_id: int | None = backend.token_to_id(self.bos_text) if self.bos_text is not None else None
        self._add_bos = add_bos if self.bos_id is not None else None
        added = backend.get_added_tokens_decoder()
        self._added_texts = {token_id: token.content for token_id, token in added.items()}
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = backend.get_vocab_size()
        self.is_byte_level = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        self._has_byte_tokens = not self.is_byte_level and self._text_inside("<0x41>") == "A"

    @property
    def bos_text(self) -> str | None:
        return self.special_tokens.get("bos")

    def to_json(self) -> str:
        """What a tokenizer.json holds."""
        text: str = self._backend.to_str()
        return text

    def added_id(self, text: str) -> int | None:
        """The id of a text that is one token wherever it stands, as special tokens are; else None."""
        return self._added_ids.get(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text.

        Markers in the text, such as <|im_end|>, become the special tokens they name, as in Hugging
        Face's tokenizers. add_special_tokens adds what the model expects around a text, e.g. bos.
        Raises RequestError when the text is not valid Unicode.
        """
        use_processor = add_special_tokens and self._add_bos is None
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=use_processor).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise RequestError("the text holds half of a surrogate pair, which is no character") from error
        if add_special_tokens and self._add_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD, ids without a token nothing.

        Raises RequestError for a negative id or one above 32 bits.
        """
        try:
            text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            raise RequestError("a token id must lie between 0 and 2**32 - 1", param="tokens") from error
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text that does not begin with it; b"" for an id without a token.

        Special tokens add their own text, though decode() may be told to leave it out.
        """
        if token_id in self._added_texts:
            return self._added_texts[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.is_byte_level:
            spelled = [BYTE_OF_CHAR.get(char) for char in token]
            # A vocabulary may hold a token that is not spelled in that alphabet; it decodes to itself.
            return token.encode() if None in spelled else bytes(byte for byte in spelled if byte is not None)
        byte = BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        return self._text_inside(token).encode() if byte is None else bytes.fromhex(byte[1])

    def _text_inside(self, token: str) -> str:
        """A token's text after another's: a decoder may take a space from the beginning of all text."""
        decoder = self._backend.decoder
        text: str = token if decoder is None else decoder.decode(["x", token]).removeprefix("x")
        return text


def load_tokenizer(path: Path, override: Path | None = None) -> Tokenizer | None:
    """The tokenizer of a model directory or .gguf file; None when a directory has none.

    override  a directory, tokenizer.json or .gguf file to take it from instead
    Raises ModelError when it cannot be read.
    """
    source = override or path
    if source.is_dir():
        return _from_folder(source, is_required=override is not None)
    if source.suffix == ".json":
        return _from_json(source)
    metadata = read_gguf_header(source).metadata
    kept = tokenizer_file(source)
    assert kept is not None
    backend = _kept(kept)
    if backend is None:
        try:
            backend = build_gguf_tokenizer(metadata)
        except ModelError as error:
            raise ModelError(f"{source}: {brief(error)}") from error
        with suppress(OSError):  # then it is built again the next time
            keep_tokenizer(kept, backend.to_str())
    return Tokenizer(backend, special_tokens_of_gguf(metadata))


def _kept(file: Path) -> tokenizers.Tokenizer | None:
    """What was built before, which takes twice as long as to read it; None when it cannot be read."""
    if not file.is_file():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a bare Exception, and a panic of its is not even that
        logger.debug("%s cannot be read: %s", file, error)
        return None


def _from_folder(folder: Path, *, is_required: bool) -> Tokenizer | None:
    names = [file.name for file in tokenizer_parts(folder)]
    if "tokenizer.json" in names:
        return _from_json(folder / "tokenizer.json")
    if "vocab.json" in names:
        return _with_listed_tokens(build_from_vocab_files(folder), folder, BOS_BY_DEFAULT)
    if "tokenizer.model" in names:
        backend = build_from_sentencepiece_file(folder / "tokenizer.model")
        return _with_listed_tokens(backend, folder, None)
    pair = ("vocab.json", "merges.txt")
    if halves := [name for name in pair if (folder / name).is_file()]:
        lack = next(name for name in pair if name not in halves)
        raise ModelError(
            f"{folder} has {halves[0]} without {lack}, which belongs to it: put it there, or give another"
            " tokenizer by --tokenizer DIR_OR_FILE"
        )
    others = [name for name in OTHER_FORMATS if (folder / name).is_file()]
    found = f"; {', '.join(others)} cannot be read: save it with transformers to get one" if others else ""
    message = f"{folder} has no tokenizer.json{found}"
    if is_required or others:
        raise ModelError(message)
    logger.warning(
        "%s: prompts are token ids, texts of answers are empty, and return_token_ids: true shows their ids",
        message,
    )
    return None


def _with_listed_tokens(
    backend: tokenizers.Tokenizer, folder: Path, bos_models: Collection[str] | None
) -> Tokenizer:
    """bos_models: kinds of model whose prompts begin with bos where the settings do not say; None = all"""
    special_tokens = add_listed_tokens(backend, folder)
    add_bos = read_json_if_present(folder / "tokenizer_config.json").get("add_bos_token")
    if not isinstance(add_bos, bool):
        model_type = read_json_if_present(folder / "config.json").get("model_type")
        add_bos = bos_models is None or model_type in bos_models
    return Tokenizer(backend, special_tokens, add_bos)


def _from_json(file: Path) -> Tokenizer:
    settings: dict[str, Any] = read_json_if_present(file.parent / "tokenizer_config.json")
    special_tokens, add_bos = special_tokens_of_folder(file.parent), settings.get("add_bos_token")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
        return Tokenizer(backend, special_tokens, add_bos if isinstance(add_bos, bool) else None)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a bare Exception, and a panic of its is not even that
        raise ModelError(f"cannot read {file}: {brief(error)}") from error
