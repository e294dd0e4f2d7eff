"""GGUF headers: what a good file says, and what a bad one does not do."""

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.gguf_header import GGML_TYPES, read_gguf_header
from tests.model_builders import gguf_bytes, gguf_text

TENSORS = {
    "a": ((2, 32), "F32", bytes(256)),
    "b": ((3, 32), "Q4_1", bytes(60)),
}
ONE_KEY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("key")


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def test_metadata_and_tensor_places_are_read(tmp_path: Path) -> None:
    metadata = {
        "name": "tiny 한국",
        "n": 7,
        "on": True,
        "eps": 0.5,
        "ids": [1, -2, 3],
        "texts": ["x", "", "é"],
    }
    path = write(tmp_path, gguf_bytes(metadata, TENSORS))

    header = read_gguf_header(path)

    assert header.metadata == metadata
    assert [(t.name, t.shape, t.type, t.num_bytes) for t in header.tensors.values()] == [
        ("a", (2, 32), "F32", 256),
        ("b", (3, 32), "Q4_1", 60),
    ]
    assert header.tensors["b"].offset == header.tensors["a"].offset + 256
    assert header.tensors["a"].offset == path.stat().st_size - 256 - 64


def test_tensor_types_have_the_sizes_of_ggml() -> None:
    for type_id, ours in GGML_TYPES.items():
        theirs = gguf.GGMLQuantizationType(type_id)
        assert (ours.name, (ours.block_len, ours.block_bytes)) == (theirs.name, gguf.GGML_QUANT_SIZES[theirs])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is empty; download it again"),
        (b"not a model at all", "does not begin with the letters GGUF"),
        (gguf_bytes({}, magic=b"GGML"), "does not begin with the letters GGUF"),
        (gguf_bytes({}, version=1), "version 1"),
        (gguf_bytes({}, version=3 << 24), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"claims {2**60} tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), f"claims {2**63} metadata keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 60_000), "ends at byte 24, in the middle of its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50) + b"key", "it ends at byte 35, in the middle"),
        (ONE_KEY + struct.pack("<I", 99), "unknown kind 99"),
        (ONE_KEY + struct.pack("<IIQ", 9, 4, 2**40), "elements"),
        (ONE_KEY + struct.pack("<IIQ", 9, 9, 1), "unreadable kind 9"),
        (gguf_bytes({"k": b"\xff\xfe"}), "utf-8"),
        (gguf_bytes({"general.alignment": 3}), "not a power of two"),
        (gguf_bytes({"general.alignment": 0}), "not a power of two"),
        (gguf_bytes({"general.alignment": "32"}), "not a power of two"),
        (gguf_bytes({}, {"a": ((1,) * 5, "F32", bytes(4))}), "5 dimensions"),
        (gguf_bytes({}, {"a": ((2, 31), "Q8_0", bytes(68))}), "does not divide into Q8_0 blocks"),
        (gguf_bytes({}, {"a": ((0, 32), "Q8_0", b"")}), "does not divide"),
        (gguf_bytes({}, {"a": ((2**40, 2**40), "F32", bytes(64))}), "beyond the end of the file"),
        (gguf_bytes({}, TENSORS)[:-70], "beyond the end of the file"),
        (gguf_bytes({}, {"a": ((2, 32), "F32", bytes(32)), "b": ((32,), "F32", bytes(256))}), "overlap"),
    ],
)  # fmt: skip
def test_hostile_file_is_refused_by_name(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = write(tmp_path, data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=complaint) as refusal:
            read_gguf_header(path)
        assert str(path) in str(refusal.value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_texts_of_an_array_are_decoded_when_they_are_looked_at(tmp_path: Path) -> None:
    texts = read_gguf_header(write(tmp_path, gguf_bytes({"k": [b"good", b"\xff\xfe"]}))).metadata["k"]
    assert len(texts) == 2
    with pytest.raises(ModelError, match="text that is not UTF-8"):
        texts[0]


def test_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    header = read_gguf_header(write(tmp_path, gguf_bytes({"k": 1})))
    assert read_gguf_header(tmp_path / "model.gguf") is header
    assert read_gguf_header(write(tmp_path, gguf_bytes({"k": 1, "n": 2}))).metadata == {"k": 1, "n": 2}


def test_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    entry = gguf_text("key") + struct.pack("<II", 4, 1)
    path = write(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2)
    with pytest.raises(ModelError, match="metadata key 'key' occurs twice"):
        read_gguf_header(path)


def test_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    good = gguf_bytes({}, {"blk.0.x": ((32,), "F64", bytes(256))})
    path = write(tmp_path, good.replace(struct.pack("<IQ", 28, 0), struct.pack("<IQ", 77, 0)))
    with pytest.raises(ModelError, match=r"'blk\.0\.x' has the unknown type 77"):
        read_gguf_header(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*absent\.gguf: No such file"):
        read_gguf_header(tmp_path / "absent.gguf")


GOOD = gguf_bytes({"k": ["a", "b"], "n": 1}, TENSORS)


@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
def test_damaged_file_gives_a_header_or_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: int
) -> None:
    data = bytearray(GOOD)
    data[at] = byte
    path = write(tmp_path_factory.getbasetemp(), bytes(data[:cut]))
    with suppress(ModelError):
        header = read_gguf_header(path)
        assert all(t.offset + t.num_bytes <= cut for t in header.tensors.values())


@pytest.mark.oracle
def test_file_of_the_gguf_package_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_token_list(["a", "한국", "<|end|>"])
    writer.add_rope_freq_base(5e5)
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("x", values)
    writer.add_tensor(
        "y", gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header = read_gguf_header(tmp_path / "model.gguf")

    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "한국", "<|end|>"]
    assert header.metadata["llama.rope.freq_base"] == 5e5
    assert (header.tensors["y"].shape, header.tensors["y"].type) == ((2, 32), "Q8_0")
    place = header.tensors["x"]
    data = (tmp_path / "model.gguf").read_bytes()[place.offset : place.offset + place.num_bytes]
    assert data == values.tobytes()


@pytest.mark.model
def test_default_models_header_is_whole() -> None:
    header = read_gguf_header(resolve("smollm2-135m-instruct").path)
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(header.tensors) == 272
