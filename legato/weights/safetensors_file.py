"""Tensors in .safetensors files, one or many, checked before a byte of data is used."""

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from legato.backends.stored_weight import StoredWeight, WeightFormat
from legato.core.errors import ModelError, brief

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMS = 8
MAX_SIZE = 2**48  # of one dimension
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<u2"), "BF16": np.dtype("<u2")}
_INTEGERS: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
}
_FORMATS: dict[str, WeightFormat] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `offset` counts from the start of the file."""

    type: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsFile:
    """One file, whose tensors are read one by one. Source: the safetensors format specification.

    Raises ModelError, naming the file, when its header is not consistent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.stat().st_size == 0:  # which mmap refuses in words of its own
                raise ModelError(f"{path} is empty; download it again")
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self.tensors = _read_header(data)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path} is not a usable .safetensors file: {brief(error)}") from error

    def read(self, name: str, rows: range | None = None) -> StoredWeight:
        """A tensor, or some rows of it. Raises ModelError when its dtype is none of F32, F16, BF16."""
        tensor = self.tensors[name]
        dtype = _DTYPES.get(tensor.type)
        if dtype is None:
            reason = f"tensor {name!r} is {tensor.type}; F32, F16 and BF16 are read"
            raise ModelError(f"{self.path}: {brief(reason)}")
        values = self._values(name, dtype, rows)
        return StoredWeight(_FORMATS[tensor.type], values.shape, values)

    def read_integers(self, name: str) -> np.ndarray:
        """A tensor of I64, I32 or I8. Raises ModelError when its dtype is another."""
        return self._values(name, integer_dtype(self.path, name, self.tensors[name].type))

    def _values(self, name: str, dtype: np.dtype[Any], rows: range | None = None) -> np.ndarray:
        tensor = self.tensors[name]
        shape = tensor.shape if rows is None else (len(rows), tensor.shape[-1])
        start = 0 if rows is None else rows.start * tensor.shape[-1]
        count = math.prod(shape)
        values = np.fromfile(self.path, dtype, count, offset=tensor.offset + start * dtype.itemsize)
        if len(values) < count:
            raise ModelError(f"{self.path}: tensor {name!r} is cut off; download the file again")
        return values.reshape(shape)


def integer_dtype(path: Path, name: str, type_name: str) -> np.dtype[Any]:
    """Raises ModelError, naming the tensor, unless it is of integers as quantised weights are."""
    dtype = _INTEGERS.get(type_name)
    if dtype is None:
        raise ModelError(f"{path}: {brief(f'tensor {name!r} is {type_name}, not I64, I32 or I8')}")
    return dtype


def _read_header(data: mmap.mmap) -> dict[str, StoredTensor]:
    header_bytes = int.from_bytes(data[:8], "little")
    start = 8 + header_bytes
    if header_bytes > MAX_HEADER_BYTES:
        raise ValueError(f"its header claims {header_bytes} bytes")
    if start > len(data):
        raise ValueError(f"it is cut off at byte {len(data)}, in its header; download it again")
    header = json.loads(data[8:start], object_pairs_hook=_unique)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _stored_tensor(name, fields, start) for name, fields in header.items()}
    ordered = sorted(tensors.items(), key=lambda item: item[1].offset)
    for (name, tensor), (next_name, after) in pairwise(ordered):
        if tensor.offset + tensor.num_bytes > after.offset:
            raise ValueError(f"tensors {name!r} and {next_name!r} overlap")
    for name, tensor in ordered:
        if tensor.offset + tensor.num_bytes > len(data):
            raise ValueError(f"tensor {name!r} goes beyond the end of the file; was a download cut off?")
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice in its header")
    return entries


def _stored_tensor(name: str, fields: Any, start: int) -> StoredTensor:
    if not isinstance(fields, Mapping):
        raise ValueError(f"tensor {name!r} is not described by a JSON object")
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} lacks a proper dtype, shape and data_offsets")
    if len(shape) > MAX_DIMS or max(shape, default=0) > MAX_SIZE:
        raise ValueError(f"tensor {name!r} has a shape that no tensor has: {shape}")
    num_bytes = offsets[1] - offsets[0]
    num_values = 1
    for size in shape:
        num_values *= size
    known = (_DTYPES | _INTEGERS).get(dtype)
    if num_bytes < 0 or (known is not None and num_values * known.itemsize != num_bytes):
        raise ValueError(f"tensor {name!r} of shape {shape} and dtype {dtype} cannot take {num_bytes} bytes")
    return StoredTensor(dtype, tuple(shape), start + offsets[0], num_bytes)


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
