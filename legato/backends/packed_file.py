"""A file of packed weights: a header that says what is inside, then arrays that are used where they lie.

    MAGIC, 8 bytes | length of the header, 8 | its BLAKE2b, 16 | header, JSON | arrays, each on a 64th byte

The header holds the identity of what was packed, the length of the whole file, and of each array its format,
shape, place and checksum. A damaged weight would change answers and nothing else, so every array is read once
when the file is mapped; the first step would have to read it anyway.
"""

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from legato.core.errors import brief

MAGIC = b"LEGATOP2"
ALIGNMENT = 64  # of a panel
NUM_THREADS = 2  # reading is bound by memory: more threads gain nothing
VECTOR = "vector"  # format of float32 values that are not packed
_PREFIX = struct.Struct("<8sQ16s")


class UnusableError(Exception):
    """The file is not whole, or holds something else; its text says which."""


@dataclass(frozen=True, slots=True)
class PackedArray:
    """One array as it lies in memory and in the file.

    format  a weight's format in the kernels, or VECTOR
    data    [bytes]
    """

    format: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


Size = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct):
    """Of each array: format, shape, offset behind the header, bytes, checksum."""

    identity: Any
    data_bytes: Size
    arrays: dict[str, tuple[str, tuple[Size, ...], Size, Size, int]]


Identity = Mapping[str, Any]  # what was packed, and by what: equal ones give equal bytes; as JSON has it


def write_packed_file(path: Path, identity: Identity, arrays: Mapping[str, PackedArray]) -> None:
    """Write the file to the last byte on the disk. Raises OSError."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = (array.format, array.shape, end, array.data.nbytes, zlib.crc32(array.data.data))
        end = _aligned(end + array.data.nbytes)
    header = json.dumps({"identity": identity, "data_bytes": end, "arrays": places}).encode()
    with path.open("wb", buffering=0) as file:
        start = _aligned(_PREFIX.size + len(header))
        file.truncate(start + end)
        _write(file.fileno(), _PREFIX.pack(MAGIC, len(header), _digest(header)) + header, 0)
        for name, array in arrays.items():
            _write(file.fileno(), array.data.data, start + places[name][2])
        os.fsync(file.fileno())


def map_packed_file(path: Path, identity: Identity) -> dict[str, PackedArray]:
    """The arrays of a file, in memory shared with every process that maps it.

    Raises UnusableError when it is not whole or of another identity, OSError when it cannot be read.
    """
    with path.open("rb") as file:
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
            raise UnusableError("it is no file of packed weights")
        _, header_bytes, digest = _PREFIX.unpack(prefix)
        file_bytes = os.fstat(file.fileno()).st_size
        header = file.read(min(header_bytes, file_bytes))
        if _digest(header) != digest:
            raise UnusableError("its header is damaged")
        fields = _read_header(header)
        start = _aligned(_PREFIX.size + header_bytes)
        if file_bytes != start + fields.data_bytes:
            raise UnusableError("it is not whole")
        if fields.identity != json.loads(json.dumps(identity)):
            raise UnusableError("it was made from other files or by another build")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {
        name: PackedArray(kind, shape, np.frombuffer(data, np.uint8, num_bytes, start + offset))
        for name, (kind, shape, offset, num_bytes, _) in fields.arrays.items()
    }
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        checksums = pool.map(zlib.crc32, [array.data.data for array in arrays.values()])
    for (name, place), checksum in zip(fields.arrays.items(), checksums, strict=True):
        if checksum != place[-1]:
            raise UnusableError(f"its {name} is damaged")
    return arrays


def _read_header(header: bytes) -> _Header:
    try:
        fields = msgspec.json.decode(header, type=_Header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnusableError(f"its header cannot be read: {error}") from error
    for name, (_, _, offset, num_bytes, _) in fields.arrays.items():
        if offset + num_bytes > fields.data_bytes:
            raise UnusableError(f"its {brief(name)} goes beyond its end")
    return fields


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    """All of `data`: one call writes 2 GiB at most, or what a full disk takes."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _digest(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=16).digest()
