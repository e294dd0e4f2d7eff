"""The header of a GGUF file: metadata and tensor table, read by struct and mmap without any array library."""

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

from legato.core.errors import ModelError, brief
from legato.modelfiles.weight_files import gguf_parts, model_name

MAX_ENTRIES = 1 << 16  # metadata keys, and tensors: far above any real model, so a false count ends early
MAX_ARRAY_LEN = 1 << 22  # elements of one metadata array; the largest vocabularies have 2**18 tokens
MAX_DIMS = 4
KEPT_HEADERS = 8  # a vocabulary takes some megabytes


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type: `block_len` values take `block_bytes` bytes."""

    name: str
    block_len: int
    block_bytes: int


# Source: the GGUF specification (ggml/docs/gguf.md) and the block layouts of ggml.
GGML_TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    20: GgmlType("IQ4_NL", 32, 18),
    23: GgmlType("IQ4_XS", 256, 136),
    24: GgmlType("I8", 1, 1),
    25: GgmlType("I16", 1, 2),
    26: GgmlType("I32", 1, 4),
    27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8),
    30: GgmlType("BF16", 1, 2),
}

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies.

    path    of its file, which may be a part of several
    shape   outermost dimension first, as in numpy (GGUF writes it innermost first)
    type    name of its ggml type, e.g. "Q4_1"
    offset  of its first byte in the file
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    type: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are int, float, bool, str, a list of numbers, or Texts."""

    metadata: Mapping[str, Any]
    tensors: dict[str, GgufTensor]


class Texts(Sequence[str]):
    """An array of texts, decoded when one of them is first looked at: few readers need the vocabulary.

    data  the texts, each after its length in 8 bytes
    Raises ModelError then, naming the file, when they are not UTF-8.
    """

    def __init__(self, path: Path, data: bytes, count: int) -> None:
        self._path = path
        self._data = data
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._texts[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._texts == list(other)

    def __repr__(self) -> str:
        return f"{self._count} texts"

    __hash__ = None  # type: ignore[assignment]  # like a list

    def position(self, text: str) -> int | None:
        """Where a text stands first, without decoding them all; None when it is nowhere."""
        written = text.encode()
        place = self._data.find(_U64.pack(len(written)) + written)
        index = offset = 0
        while offset < place:
            offset += 8 + _U64.unpack_from(self._data, offset)[0]
            index += 1
        return index if offset == place else None

    @cached_property
    def _texts(self) -> list[str]:
        data, unpack = self._data, _U64.unpack_from
        texts, end = [], 0
        try:
            for _ in range(self._count):  # 50,000 times for a vocabulary, so attribute look-ups stay outside
                start = end + 8
                end = start + unpack(data, end)[0]
                texts.append(str(data[start:end], "utf-8"))
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path}: its header holds a text that is not UTF-8: {error}") from error
        return texts


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file, version 2 or 3, little-endian.

    The last ones are kept, for as long as their files stay as they are.
    Raises ModelError, naming the file, when it is missing, cut off or not consistent in itself.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    return _read_header(path, (state.st_ino, state.st_size, state.st_mtime_ns))


def read_gguf_model(path: Path) -> GgufHeader:
    """Read the header of a GGUF file; with the tensors of all parts where it is the first of several.

    Raises ModelError, naming the file or the part that is missing or does not belong there.
    """
    header, parts = read_gguf_header(path), gguf_parts(path)
    count = header.metadata.get("split.count", 1) or 1
    if count == 1 < len(parts):
        name = model_name(path)
        raise ModelError(f"{path} is a whole model under the name of a part: rename it, to {name}.gguf")
    if count != len(parts):
        names = "NAME-00001-of-00003.gguf"
        raise ModelError(
            f"{path} is one of {brief(repr(count))} parts, which have to keep their names, like {names}"
        )
    if path != parts[0]:
        raise ModelError(f"{path} is not the first of its parts: name {parts[0].name}")
    tensors: dict[str, GgufTensor] = {}
    for number, part in enumerate(parts):
        if not part.is_file():
            raise ModelError(f"{part} is missing: {path.name} is the first of {count} parts")
        found = read_gguf_header(part)
        if count > 1 and (found.metadata.get("split.no"), found.metadata.get("split.count")) != (
            number,
            count,
        ):
            raise ModelError(
                f"{part} does not say that it is part {number + 1} of {count}; download it again"
            )
        if twice := tensors.keys() & found.tensors.keys():
            raise ModelError(f"{part}: tensor {brief(repr(min(twice)))} is in another part too")
        tensors |= found.tensors
    return GgufHeader(header.metadata, tensors)


@lru_cache(maxsize=KEPT_HEADERS)
def _read_header(path: Path, state: tuple[int, ...]) -> GgufHeader:
    try:
        if path.stat().st_size == 0:  # which mmap refuses in words of its own
            raise ModelError(f"{path} is empty; download it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read_header()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except struct.error as error:
        raise ModelError(
            f"{path} is not whole: it ends at byte {path.stat().st_size}, in the middle of its header;"
            " download it again"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path} is not a usable GGUF file: {brief(error)}") from error


class _Reader:
    """A cursor over the header's bytes; every fault is a ValueError or struct.error."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.end = len(data)
        self.offset = 0

    def read_header(self) -> GgufHeader:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        self.offset = 4
        version = self.number("I")
        if version not in (2, 3):
            hint = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise ValueError(f"it is {hint}; versions 2 and 3, little-endian, are read")
        num_tensors, num_keys = self.count("tensors", MAX_ENTRIES), self.count("metadata keys", MAX_ENTRIES)
        metadata = self.table(num_keys, "metadata key", self.value)
        fields = self.table(num_tensors, "tensor", self.tensor_fields)
        return GgufHeader(metadata, self.place_tensors(fields, metadata.get("general.alignment", 32)))

    def number(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.data, self.offset)
        self.offset += layout.size
        return value

    def count(self, what: str, limit: int) -> int:
        count: int = self.number("Q")
        if count > limit:
            raise ValueError(f"it claims {count} {what}; at most {limit} are read")
        return count

    def string(self) -> str:
        start = self.offset + 8
        self.skip_texts(1)
        return str(self.data[start : self.offset], "utf-8")

    def texts(self, count: int) -> Texts:
        start = self.offset
        self.skip_texts(count)
        return Texts(self.path, self.data[start : self.offset], count)

    def skip_texts(self, count: int) -> None:
        data, offset, end = self.data, self.offset, self.end
        unpack = _U64.unpack_from
        for _ in range(count):
            offset += 8 + unpack(data, offset)[0]
            if offset > end:
                raise struct.error("a text goes beyond the end of the file")
        self.offset = offset

    def table(self, count: int, what: str, read_value: Callable[[], Any]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for _ in range(count):
            name = self.string()
            if name in entries:
                raise ValueError(f"{what} {name!r} occurs twice")
            entries[name] = read_value()
        return entries

    def value(self) -> Any:
        kind = self.number("I")
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        raise ValueError(f"metadata of the unknown kind {kind}")

    def array(self) -> list[Any] | Texts:
        kind = self.number("I")
        count = self.count("elements in an array", MAX_ARRAY_LEN)
        if kind == _STRING:
            return self.texts(count)
        if kind not in _SCALARS:
            raise ValueError(f"an array of the unreadable kind {kind}")
        layout = struct.Struct(f"<{count}{_SCALARS[kind]}")
        values = layout.unpack_from(self.data, self.offset)
        self.offset += layout.size
        return list(values)

    def tensor_fields(self) -> tuple[tuple[int, ...], int, int]:
        num_dims = self.number("I")
        if num_dims > MAX_DIMS:
            raise ValueError(f"a tensor of {num_dims} dimensions; at most {MAX_DIMS} are read")
        shape = tuple(self.number("Q") for _ in range(num_dims))
        return shape[::-1], self.number("I"), self.number("Q")

    def place_tensors(
        self, fields: dict[str, tuple[tuple[int, ...], int, int]], alignment: Any
    ) -> dict[str, GgufTensor]:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r}, not a power of two")
        data_start = -(-self.offset // alignment) * alignment
        tensors = {}
        for name, (shape, type_id, offset) in fields.items():
            if offset % alignment:
                raise ValueError(f"tensor {name!r} is not aligned to {alignment} bytes")
            ggml_type, num_bytes = _size(name, shape, type_id)
            tensors[name] = GgufTensor(name, self.path, shape, ggml_type.name, data_start + offset, num_bytes)
        _check_places(tensors, self.end)
        return tensors


def _size(name: str, shape: tuple[int, ...], type_id: int) -> tuple[GgmlType, int]:
    ggml_type = GGML_TYPES.get(type_id)
    if ggml_type is None:
        raise ValueError(f"tensor {name!r} has the unknown type {type_id}")
    num_values = 1
    for size in shape:
        num_values *= size
    if num_values == 0 or (shape[-1] if shape else 1) % ggml_type.block_len:
        raise ValueError(
            f"tensor {name!r} of shape {list(shape)} does not divide into {ggml_type.name} blocks"
        )
    return ggml_type, num_values // ggml_type.block_len * ggml_type.block_bytes


def _check_places(tensors: Mapping[str, GgufTensor], file_bytes: int) -> None:
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.num_bytes > after.offset:
            raise ValueError(f"tensors {before.name!r} and {after.name!r} overlap")
    if ordered and ordered[-1].offset + ordered[-1].num_bytes > file_bytes:
        raise ValueError(f"tensor {ordered[-1].name!r} goes beyond the end of the file; download it again")
