"""Tensors in files of torch.save, zip or legacy: read from where they lie, and nothing in the file is run."""

import math
import mmap
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from legato.backends.stored_weight import StoredWeight
from legato.core.errors import ModelError, brief
from legato.weights.gguf_tensors import FLOATS
from legato.weights.safetensors_file import integer_dtype
from legato.weights.tensor_pickle import ITEM_BYTES, MAX_PICKLE_BYTES, PickledTensor, TensorPickle

LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip entry: lengths of its name and extra field
_LOCAL_HEADER_BYTES, _LOCAL_MAGIC = 30, b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class BinTensor:
    """A tensor and the place of its storage, in bytes from the start of the file."""

    view: PickledTensor
    storage_offset: int

    @property
    def type(self) -> str:
        return self.view.storage.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.type]


class TorchBinFile:
    """One file, whose tensors are read one by one. Source: torch/serialization.py.

    Raises ModelError, naming the file, when it is not consistent or asks for anything but tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.stat().st_size == 0:  # which mmap refuses in words of its own
                raise ModelError(f"{path} is empty; download it again")
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self.tensors = _read_zip(path, data) if data[:4] == _LOCAL_MAGIC else _read_legacy(data)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
        except (zipfile.BadZipFile, struct.error) as error:  # whose words are about zip files and buffers
            raise ModelError(f"{path} is not whole, or no file of torch.save; download it again") from error
        except (ValueError, NotImplementedError) as error:
            raise ModelError(f"{path} is not a usable file of torch.save: {brief(error)}") from error

    def read(self, name: str, rows: range | None = None) -> StoredWeight:
        """A tensor, or some rows of it. Raises ModelError when its dtype is none of F32, F16, BF16."""
        tensor = self.tensors[name]
        if tensor.type not in FLOATS:
            reason = f"tensor {name!r} is {tensor.type}; F32, F16 and BF16 are read"
            raise ModelError(f"{self.path}: {brief(reason)}")
        weight_format, dtype = FLOATS[tensor.type]
        values = self._values(name, tensor, dtype)
        if rows is not None:
            values = values.reshape(-1, tensor.shape[-1])[rows.start : rows.stop]
        return StoredWeight(weight_format, values.shape, values)

    def read_integers(self, name: str) -> np.ndarray:
        """A tensor of I64, I32 or I8. Raises ModelError when its dtype is another."""
        tensor = self.tensors[name]
        return self._values(name, tensor, integer_dtype(self.path, name, tensor.type))

    def _values(self, name: str, tensor: BinTensor, dtype: np.dtype[Any]) -> np.ndarray:
        view, num_values = tensor.view, math.prod(tensor.shape)
        if num_values == 0:
            return np.empty(tensor.shape, dtype)
        reach = num_values
        if not view.is_contiguous:
            reach = 1 + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
        start = tensor.storage_offset + view.offset * dtype.itemsize
        values = np.fromfile(self.path, dtype, reach, offset=start)
        if len(values) < reach:
            raise ModelError(f"{self.path}: tensor {name!r} is cut off; download the file again")
        if view.is_contiguous:
            return values.reshape(tensor.shape)
        strides = [stride * dtype.itemsize for stride in view.strides]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, view.shape, strides))


def _read_zip(path: Path, data: mmap.mmap) -> dict[str, BinTensor]:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        raise ValueError("two of its entries have one name")
    pickles = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise ValueError("it is a zip archive without the data.pkl of torch.save")
    root = pickles[0].removesuffix("data.pkl")
    if root + "byteorder" in entries and _entry(data, entries[root + "byteorder"]) != b"little":
        raise ValueError("its numbers are big-endian; save it again on another machine")
    if entries[pickles[0]].file_size > MAX_PICKLE_BYTES:
        raise ValueError(f"its data.pkl has more than {MAX_PICKLE_BYTES} bytes")
    pickle = TensorPickle(_entry(data, entries[pickles[0]]))
    views = _views(pickle.read())
    places: dict[str, tuple[int, int]] = {}
    for key in pickle.storages:
        entry = entries.get(f"{root}data/{key}")
        if entry is None:
            raise ValueError(f"it lacks the entry data/{key}; was a download cut off?")
        places[key] = (_start(data, entry), entry.file_size)
    return _placed(views, places, len(data))


def _start(data: mmap.mmap, entry: zipfile.ZipInfo) -> int:
    """Where an entry's bytes begin. Raises ValueError when they are compressed, or not in the file."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise ValueError(f"its entry {entry.filename!r} is compressed, as torch.save never does")
    header = data[entry.header_offset : entry.header_offset + _LOCAL_HEADER_BYTES]
    if entry.header_offset < 0 or len(header) < _LOCAL_HEADER_BYTES or not header.startswith(_LOCAL_MAGIC):
        raise ValueError(f"its entry {entry.filename!r} is not where its table of contents says")
    start: int = entry.header_offset + _LOCAL_HEADER_BYTES + sum(_LOCAL_HEADER.unpack(header))
    if start + entry.file_size > len(data):
        raise ValueError(f"its entry {entry.filename!r} goes beyond the end of the file")
    return start


def _entry(data: mmap.mmap, entry: zipfile.ZipInfo) -> bytes:
    start = _start(data, entry)
    return data[start : start + entry.file_size]


def _read_legacy(data: mmap.mmap) -> dict[str, BinTensor]:
    """Five pickles: magic number, version, machine, tensors, keys of storages; then the numbers."""
    pickles: list[TensorPickle] = []
    values: list[Any] = []
    at = 0
    for _ in range(5):
        pickles.append(TensorPickle(data, at))
        values.append(pickles[-1].read())
        at = pickles[-1].at
        if values[0] != LEGACY_MAGIC:
            raise ValueError("it does not begin as torch.save begins a file")
    _, version, machine, described, keys = values
    if version != LEGACY_PROTOCOL or not isinstance(machine, dict) or not isinstance(keys, list):
        raise ValueError("it is of an unknown version of torch.save")
    if machine.get("little_endian") is not True:
        raise ValueError("its numbers are big-endian; save it again on another machine")
    views, storages = _views(described), pickles[3].storages
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None or key in places:
            raise ValueError("it holds numbers of which it does not say once what they are")
        if data[at : at + 8] != storage.num_values.to_bytes(8, "little"):
            raise ValueError("it does not hold as many numbers as it says; was a download cut off?")
        num_bytes = storage.num_values * ITEM_BYTES[storage.type]
        places[key] = (at + 8, num_bytes)
        at += 8 + num_bytes
    if missing := storages.keys() - places.keys():
        raise ValueError(f"it lacks the numbers of storage {min(missing)!r}")
    return _placed(views, places, len(data))


def _views(described: Any) -> dict[str, PickledTensor]:
    """The tensors of a state_dict; whatever else is beside them is left out."""
    if not isinstance(described, Mapping):
        raise ValueError("it holds no dict of tensors")
    views = {name: value for name, value in described.items() if isinstance(value, PickledTensor)}
    if not views:
        raise ValueError("it holds no tensors under names of their own: give the state_dict alone")
    return views


def _placed(
    views: Mapping[str, PickledTensor], places: Mapping[str, tuple[int, int]], file_bytes: int
) -> dict[str, BinTensor]:
    """Tensors with their storages' places (start, bytes), which lie apart and inside the file."""
    for (start, num_bytes), (next_start, _) in pairwise(sorted(places.values())):
        if start + num_bytes > next_start:
            raise ValueError("two of its storages overlap")
    for name, view in views.items():
        start, num_bytes = places[view.storage.key]
        if num_bytes != view.storage.num_values * ITEM_BYTES[view.storage.type]:
            raise ValueError(f"the storage of tensor {name!r} does not have as many bytes as it says")
        if start + num_bytes > file_bytes:
            raise ValueError(f"tensor {name!r} goes beyond the end of the file; was a download cut off?")
    return {name: BinTensor(view, places[view.storage.key][0]) for name, view in views.items()}
