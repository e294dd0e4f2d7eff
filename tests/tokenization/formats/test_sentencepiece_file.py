"""SentencePiece's own files are read as far as they count, and refused where they cannot be followed."""

import struct
from pathlib import Path

import pytest

from legato.core.errors import ModelError
from legato.tokenization.formats.sentencepiece import build_sentencepiece
from legato.tokenization.formats.sentencepiece_file import build_from_sentencepiece_file
from legato.tokenization.tokenizer import load_tokenizer
from tests.model_builders import write_json
from tests.tokenization.hard_texts import HARD_TEXTS, sentencepiece_parts


def varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def model_bytes(trainer: bytes = number(3, 2), normalizer: bytes = number(4, 0)) -> bytes:
    pieces = b"".join(
        message(1, message(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + number(3, kind))
        for piece, score, kind in zip(*sentencepiece_parts(), strict=True)
    )
    return (
        pieces + message(2, trainer) + message(3, normalizer) + b"\x21" + bytes(8)
    )  # a field of eight bytes


def test_file_gives_the_ids_of_its_pieces(tmp_path: Path) -> None:
    for is_prefixed in (True, False):
        file = tmp_path / "tokenizer.model"
        file.write_bytes(model_bytes(normalizer=number(3, is_prefixed) + number(4, 0)))
        read = build_from_sentencepiece_file(file)
        built = build_sentencepiece(*sentencepiece_parts(), add_space_prefix=is_prefixed)
        assert read.to_str() == built.to_str()


@pytest.mark.oracle
@pytest.mark.parametrize("is_prefixed", [True, False], ids=["as Llama's", "as Gemma's"])
def test_ids_are_those_of_the_files_own_reader(tmp_path: Path, is_prefixed: bool) -> None:
    from transformers.convert_slow_tokenizer import SpmConverter, import_protobuf

    file = tmp_path / "tokenizer.model"
    normalizer = number(3, is_prefixed) + number(4, 0)
    file.write_bytes(model_bytes(trainer=number(3, 2) + number(35, 1), normalizer=normalizer))
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(file.read_bytes())
    vocab = {piece.piece: token_id for token_id, piece in enumerate(proto.pieces)}
    theirs = SpmConverter.build_tokenizer_from_spm_proto(proto, vocab)
    ours = build_from_sentencepiece_file(file)
    for text in HARD_TEXTS:
        if "<s>" not in text:
            assert ours.encode(text).ids == theirs.encode(text).ids, text


def test_folder_with_nothing_else_has_bos_before_a_text_and_its_added_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_bytes())
    write_json(tmp_path / "config.json", {"bos_token_id": 1, "eos_token_id": 2})
    num_pieces = len(sentencepiece_parts()[0])
    write_json(tmp_path / "added_tokens.json", {"<|user|>": num_pieces})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.special_tokens == {"bos": "<s>", "eos": "</s>"}
    assert tokenizer.encode("<|user|></s>") == [1, num_pieces, 2]
    assert tokenizer.decode(tokenizer.encode("Hello, 한국")) == "Hello, 한국"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (
            model_bytes(trainer=number(3, 1)),
            "kind bpe without normalization is read: load it with transformers",
        ),
        (model_bytes(trainer=b""), "kind bpe"),
        (model_bytes(normalizer=number(4, 0) + message(2, b"map")), "kind bpe"),
        (model_bytes(normalizer=b""), "kind bpe"),
        (model_bytes()[:-4], "ends in the middle of a field"),
        (b"\xff" * 40, "more than ten bytes"),
        (b"\x80", "no whole SentencePiece model"),
        (b"\x0b", "unknown kind 3"),
        (message(1, number(1, 5)), "a number where bytes are expected"),
        (message(1, message(1, b"\xff")), "no whole SentencePiece model"),
        (message(1, message(2, b"abc")), "no whole SentencePiece model"),
        (message(2, number(3, 2)) + message(3, number(4, 0)), "lacks <0x00>"),
        (message(1, number(3, 1)) + message(2, message(3, b"x")), "no whole SentencePiece model"),
    ],
)
def test_file_that_cannot_be_followed_is_refused_by_name(tmp_path: Path, data: bytes, complaint: str) -> None:
    file = tmp_path / "tokenizer.model"
    file.write_bytes(data)
    with pytest.raises(ModelError, match=rf"tokenizer\.model.*{complaint}"):
        load_tokenizer(tmp_path)
