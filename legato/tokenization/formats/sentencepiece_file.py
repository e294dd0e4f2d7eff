"""A tokenizer from SentencePiece's file tokenizer.model: a protobuf message, of which a few fields count.

Field numbers: sentencepiece_model.proto of SentencePiece; encoding: the Protocol Buffers specification.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from legato.core.errors import ModelError, brief
from legato.modelfiles.model_config import MAX_SIZE
from legato.tokenization.formats.sentencepiece import PieceType, build_sentencepiece

REMEDY = "load it with transformers and save it to get a tokenizer.json"
MAX_FILE_BYTES = 64 * 2**20  # the greatest in use, Gemma's, has 5 MB
BPE = 2  # of trainer_spec.model_type
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of value

Value = int | bytes


@dataclass(slots=True)
class _Model:
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = 1
    is_normalized: bool = False
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True


def build_from_sentencepiece_file(file: Path) -> Tokenizer:
    """Raises ModelError, naming the file, when it is broken or of a kind that is not read."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
        model = _read_model(file.read_bytes())
        if model.model_type != BPE or model.is_normalized or model.remove_extra_whitespaces:
            raise ModelError(f"of SentencePiece files the kind bpe without normalization is read: {REMEDY}")
        return build_sentencepiece(
            model.pieces, model.scores, model.types, add_space_prefix=model.add_dummy_prefix
        )
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror or error}") from error
    except ModelError as error:
        raise ModelError(f"{file}: {brief(error)}") from error
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{file} is no whole SentencePiece model: {error}") from error


def _read_model(data: bytes) -> _Model:
    model = _Model()
    for number, value in _fields(data):
        if number == 1:
            _read_piece(model, _message(value))
        elif number == 2:
            model.model_type = int(dict(_fields(_message(value))).get(3, 1))
        elif number == 3:
            spec = dict(_fields(_message(value)))
            model.is_normalized = bool(spec.get(2))
            model.add_dummy_prefix = bool(spec.get(3, 1))
            model.remove_extra_whitespaces = bool(spec.get(4, 1))
    return model


def _read_piece(model: _Model, data: bytes) -> None:
    if len(model.pieces) >= MAX_SIZE:
        raise ValueError(f"it has more than {MAX_SIZE} pieces")
    fields = dict(_fields(data))
    model.pieces.append(_message(fields.get(1, b"")).decode())
    model.scores.append(struct.unpack("<f", _message(fields.get(2, bytes(4))))[0])
    model.types.append(int(fields.get(3, PieceType.NORMAL)))


def _message(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field is a number where bytes are expected")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The number and the value of each field of a message."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        kind = key & 7
        if kind == _VARINT:
            value, offset = _varint(data, offset)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            num_bytes, offset = _varint(data, offset)
        elif kind in (_FIXED32, _FIXED64):
            num_bytes = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field is of the unknown kind {kind}")
        if offset + num_bytes > len(data):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, data[offset : offset + num_bytes]
        offset += num_bytes


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError("a number has more than ten bytes")
