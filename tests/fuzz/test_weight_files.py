"""Damaged files of weights of every kind: they load, or an error names the file; nothing else happens."""

import hashlib
import io
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from legato.backends.packed_file import MAGIC, PackedArray, UnusableError, map_packed_file, write_packed_file
from legato.core.errors import ModelError
from legato.modelfiles.gguf_config import read_gguf_config
from legato.modelfiles.gguf_header import read_gguf_header
from legato.tokenization.chat_template import load_chat_template
from legato.tokenization.tokenizer import load_tokenizer
from legato.weights.folder_tensors import TensorFile, open_folder
from legato.weights.gguf_tensors import GgufFile
from legato.weights.safetensors_file import SafetensorsFile
from legato.weights.torch_bin import TorchBinFile
from tests.fuzz.examples import counts, damaged, memory_below, mutated, run_examples
from tests.model_builders import TINY_GGUF, gguf_bytes, safetensors_bytes

MAX_MEMORY_BYTES = 4 * 2**20  # for files of a few kilobytes
MAX_MESSAGE_CHARS = 1000

VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>", "é"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3, 1],
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}
GGUF = gguf_bytes(
    TINY_GGUF | VOCABULARY,
    {
        "token_embd.weight": ((5, 32), "Q4_1", bytes(5 * 20)),
        "blk.0.attn_q.weight": ((4, 32), "Q8_0", bytes(4 * 34)),
        "output_norm.weight": ((8,), "F32", np.arange(8, dtype=np.float32).tobytes()),
    },
)
GGUF_HEADER_BYTES = len(GGUF) - (160 + 160 + 32)

TENSORS: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
}
SAFETENSORS = safetensors_bytes(TENSORS, bytes(40))


def check_error(error: ModelError, path: Path) -> None:
    message = str(error)
    assert str(path) in message
    assert len(message) - len(str(path)) < MAX_MESSAGE_CHARS
    assert message.replace("\n", "").isprintable()


def check_loads_or_tells(path: Path, load: Callable[[Path], Any]) -> bool:
    """Whether it loads."""
    with memory_below(MAX_MEMORY_BYTES):
        try:
            load(path)
        except ModelError as error:
            check_error(error, path)
            return False
    return True


def read_all_of_gguf(path: Path) -> None:
    """Header and each tensor that can be read; each is inside the file."""
    header = read_gguf_header(path)
    file_bytes = path.stat().st_size
    for tensor in header.tensors.values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.num_bytes <= file_bytes
    file, unread = GgufFile(path), []
    for name in file.tensors:
        try:
            file.read(name)
        except ModelError as error:
            unread.append(error)
    for error in unread:
        check_error(error, path)


def read_all_of_safetensors(path: Path) -> None:
    file = SafetensorsFile(path)
    file_bytes = path.stat().st_size
    for tensor in file.tensors.values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.num_bytes <= file_bytes
    read_each(file)


def read_all_of_torch_bin(path: Path) -> None:
    read_each(TorchBinFile(path))


def read_each(file: TensorFile) -> None:
    for name in file.tensors:
        try:
            file.read(name)
        except ModelError as error:
            check_error(error, file.path)


def test_whole_files_load(tmp_path: Path) -> None:
    gguf, safetensors = tmp_path / "m.gguf", tmp_path / "m.safetensors"
    gguf.write_bytes(GGUF)
    safetensors.write_bytes(SAFETENSORS)
    assert check_loads_or_tells(gguf, read_all_of_gguf)
    assert check_loads_or_tells(safetensors, read_all_of_safetensors)
    tokenizer = load_tokenizer(gguf)
    assert tokenizer is not None
    assert tokenizer.encode("ab") == [2]


@pytest.mark.parametrize(
    ("whole", "header_bytes", "load"),
    [
        (GGUF, GGUF_HEADER_BYTES, read_gguf_header),
        (SAFETENSORS, len(SAFETENSORS), SafetensorsFile),
    ],
    ids=["gguf", "safetensors"],
)
def test_a_file_that_ends_anywhere_in_its_header_is_refused(
    tmp_path: Path, whole: bytes, header_bytes: int, load: Callable[[Path], Any]
) -> None:
    for length in range(header_bytes):
        path = tmp_path / f"{length}.file"
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError) as refusal:
            load(path)
        check_error(refusal.value, path)


def read_text_of_gguf(path: Path) -> None:
    """Settings, tokenizer and template, each of which may be at fault by itself."""
    for read in (read_gguf_config, load_tokenizer, load_chat_template):
        try:
            read(path)
        except ModelError as error:
            if read is not read_gguf_config:  # whose caller names the file
                check_error(error, path)


@counts(60, 10_000)
@pytest.mark.parametrize("load", [read_all_of_gguf, read_text_of_gguf])
def test_damaged_gguf(tmp_path: Path, num_examples: int, load: Callable[[Path], None]) -> None:
    path = tmp_path / "m.gguf"

    def check(data: bytes) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        check_loads_or_tells(path, load)

    run_examples(num_examples, check, damaged(GGUF, GGUF_HEADER_BYTES))


@counts(60, 10_000)
def test_damaged_safetensors(tmp_path: Path, num_examples: int) -> None:
    path = tmp_path / "m.safetensors"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        check_loads_or_tells(path, read_all_of_safetensors)

    run_examples(num_examples, check, damaged(SAFETENSORS, len(SAFETENSORS) - 40))


def torch_bin(*, is_zip: bool) -> bytes:
    tensors = {"a": torch.ones(2, 3), "b": torch.ones(2, 4, dtype=torch.bfloat16).T, "c": torch.arange(3)}
    written = io.BytesIO()
    torch.save(tensors, written, _use_new_zipfile_serialization=is_zip)
    return written.getvalue()


@counts(60, 10_000)
@pytest.mark.parametrize("is_zip", [True, False])
def test_damaged_torch_bin(tmp_path: Path, num_examples: int, is_zip: bool) -> None:
    path, whole = tmp_path / "m.bin", torch_bin(is_zip=is_zip)

    def check(data: bytes) -> None:
        path.write_bytes(data)
        check_loads_or_tells(path, read_all_of_torch_bin)

    check(whole)
    run_examples(num_examples, check, damaged(whole, len(whole)))


@counts(80, 10_000)
def test_safetensors_with_odd_descriptions(tmp_path: Path, num_examples: int) -> None:
    path = tmp_path / "m.safetensors"

    def check(header: Any) -> None:
        path.write_bytes(safetensors_bytes(header, bytes(40)))
        check_loads_or_tells(path, read_all_of_safetensors)

    run_examples(num_examples, check, mutated(TENSORS, also=("a", "zeta")))


@counts(40, 3_000)
def test_index_of_shards_with_odd_entries(tmp_path: Path, num_examples: int) -> None:
    index = {"metadata": {"total_size": 40}, "weight_map": {"a": "s.safetensors", "b": "s.safetensors"}}
    (tmp_path / "s.safetensors").write_bytes(SAFETENSORS)

    def check(value: Any) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(value))
        check_loads_or_tells(tmp_path, open_folder)

    run_examples(num_examples, check, mutated(index))


IDENTITY = {"model": {"files": [[98, 1]]}, "packing": {"isa": "avx2"}}
ARRAYS = {
    "a": PackedArray("q4", (3, 64), np.arange(100, dtype=np.uint8)),
    "b": PackedArray("vector", (2,), np.array([1.5, -2.0], np.float32).view(np.uint8)),
}


def map_or_refuse(path: Path) -> None:
    with memory_below(MAX_MEMORY_BYTES), suppress(UnusableError):
        for array in map_packed_file(path, IDENTITY).values():
            array.data.sum()  # inside the file
            assert isinstance(array.format, str)
            hash(array.shape)


@counts(40, 3_000)
def test_damaged_packed_file(tmp_path: Path, num_examples: int) -> None:
    path = tmp_path / "x.packed"
    write_packed_file(path, IDENTITY, ARRAYS)
    whole = path.read_bytes()

    def check(data: bytes) -> None:
        path.unlink()
        path.write_bytes(data)
        map_or_refuse(path)

    run_examples(num_examples, check, damaged(whole, 400))


@counts(60, 5_000)
def test_packed_file_with_a_sealed_header_of_odd_values(tmp_path: Path, num_examples: int) -> None:
    path = tmp_path / "x.packed"
    write_packed_file(path, IDENTITY, ARRAYS)
    whole = path.read_bytes()
    prefix = struct.Struct("<8sQ16s")
    _, header_bytes, _ = prefix.unpack_from(whole)
    header = json.loads(whole[prefix.size : prefix.size + header_bytes])
    data = whole[-header["data_bytes"] :]

    def check(value: Any) -> None:
        text = json.dumps(value).encode()
        sealed = prefix.pack(MAGIC, len(text), hashlib.blake2b(text, digest_size=16).digest()) + text
        path.unlink()
        path.write_bytes(sealed + bytes(-len(sealed) % 64) + data)
        map_or_refuse(path)

    run_examples(num_examples, check, mutated(header))
