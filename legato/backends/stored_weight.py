"""A weight as its file holds it: quantised blocks stay quantised until a backend packs or decodes them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from legato.backends.group_packing import unpack_q4, unpack_q5, unpack_q6
from legato.program.check import HasShape

GROUP_LEN = 32  # inputs that share a scale
CHUNK_GROUPS = 2048  # 256 KiB of float32: a chunk passes all its operations inside the L2 cache

WeightFormat = Literal["f32", "f16", "bf16", "q4", "q5", "q6", "q8"]

# Of a number, its share of what its group has in common included, where that is kept as halves.
BITS: dict[WeightFormat, float] = {"f32": 32, "f16": 16, "bf16": 16, "q4": 5, "q5": 6, "q6": 7, "q8": 8.5}

_INFINITY: dict[WeightFormat, int] = {"f16": 0x7C00, "bf16": 0x7F80}  # its bits


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One array of a model; a matrix is [outputs, inputs].

    f32   values float32
    f16   values uint16, IEEE half bits
    bf16  values uint16, bfloat16 bits
    q4    value = q * scale + minimum, q of 4 bits. values uint8 [outputs, inputs / 32 * 16], as
          group_packing.pack_q4 makes them; scales and minimums float32 [outputs, inputs / 32]
    q5    the same with q of 5 bits: values [outputs, inputs / 32 * 20] of pack_q5
    q6    value = q * (scale * multiplier), q from -32 to 31, an int8 multiplier for each half of a group:
          values [outputs, inputs / 32 * 26] of pack_q6, scales as for q4
    q8    value = q * scale. values int8 [outputs, inputs], scales as for q4
    """

    format: WeightFormat
    shape: tuple[int, ...]
    values: np.ndarray
    scales: np.ndarray | None = None
    minimums: np.ndarray | None = None

    @property
    def type(self) -> str:
        return self.format.upper()

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.values, self.scales, self.minimums) if array is not None)

    def float32(self) -> np.ndarray:
        """The values, decoded: a product of two float32 is rounded before a minimum is added."""
        match self.format:
            case "f32":
                return self.values
            case "f16":
                return self.values.view(np.float16).astype(np.float32)
            case "bf16":
                return (self.values.astype(np.uint32) << 16).view(np.float32)
        assert self.scales is not None
        num_groups = self.scales.size
        out = np.empty((num_groups, GROUP_LEN), np.float32)
        for start in range(0, num_groups, CHUNK_GROUPS):
            self._decode_groups(slice(start, start + CHUNK_GROUPS), out[start : start + CHUNK_GROUPS])
        return out.reshape(self.shape)

    def is_finite(self) -> bool:
        """Whether no number, or scale of numbers, is infinite or NaN."""
        if self.values.size == 0:
            return True
        if self.format in _INFINITY:  # as integers, the bits of what is not finite are the largest
            least = _INFINITY[self.format]
            bits = self.values
            return int(bits.view(np.int16).max()) < least and int(bits.max()) < least | 0x8000
        arrays = (self.values, None) if self.format == "f32" else (self.scales, self.minimums)
        return all(
            bool(np.isfinite(each.max()) and np.isfinite(each.min())) for each in arrays if each is not None
        )

    def bfloat16(self) -> "StoredWeight":
        """The values rounded to bfloat16; groups are decoded and rounded a chunk at a time."""
        if self.format == "bf16":
            return self
        if self.scales is None:
            return StoredWeight("bf16", self.shape, to_bfloat16(self.float32()))
        num_groups = self.scales.size
        out = np.empty((num_groups, GROUP_LEN), np.uint16)
        scratch = np.empty((CHUNK_GROUPS, GROUP_LEN), np.float32)
        for start in range(0, num_groups, CHUNK_GROUPS):
            chunk = out[start : start + CHUNK_GROUPS]
            self._decode_groups(slice(start, start + CHUNK_GROUPS), scratch[: len(chunk)])
            chunk[:] = to_bfloat16(scratch[: len(chunk)])
        return StoredWeight("bf16", self.shape, out.reshape(self.shape))

    def with_half_scales(self) -> "StoredWeight":
        """Scales and minimums rounded to the nearest halves, as kernels keep them; itself where all are."""
        rounded = [_to_half(each) for each in (self.scales, self.minimums)]
        if rounded[0] is self.scales and rounded[1] is self.minimums:
            return self
        return StoredWeight(self.format, self.shape, self.values, *rounded)

    @np.errstate(over="ignore", invalid="ignore")  # scales may be anything, in a hostile file
    def _decode_groups(self, chosen: slice, out: np.ndarray) -> None:
        """Decode some groups, counted over the whole array, into out [num_chosen, 32]."""
        assert self.scales is not None
        packed = self.values.reshape(self.scales.size, -1)[chosen]
        scales = self.scales.reshape(-1, 1)[chosen]
        match self.format:
            case "q4":
                unpack_q4(packed, out)
            case "q5":
                unpack_q5(packed, out)
            case "q6":
                scales = np.repeat(scales * unpack_q6(packed, out), GROUP_LEN // 2, axis=1)
            case _:
                out[:] = packed
        out *= scales
        if self.minimums is not None:
            out += self.minimums.reshape(-1, 1)[chosen]


class TensorHeader(HasShape, Protocol):
    """What a file's header says of a weight: its type is such as "F16" or "Q4_1"."""

    @property
    def type(self) -> str: ...

    @property
    def num_bytes(self) -> int: ...


class StoredWeights(Mapping[str, StoredWeight]):
    """A model's weights, read from its files each time they are looked up: in memory are those at work alone.

    headers  what the files say of each
    """

    def __init__(self, headers: Mapping[str, TensorHeader], read: Callable[[str], StoredWeight]) -> None:
        self.headers = headers
        self._read = read

    def __getitem__(self, name: str) -> StoredWeight:
        if name not in self.headers:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.headers

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)


AnyWeights = Mapping[str, StoredWeight | np.ndarray]


def headers_of(weights: AnyWeights) -> Mapping[str, HasShape]:
    """What tells each weight's shape without reading it."""
    return weights.headers if isinstance(weights, StoredWeights) else weights


def num_values(weights: AnyWeights) -> int:
    return sum(math.prod(header.shape) for header in headers_of(weights).values())


def stored_bytes(weights: AnyWeights) -> int:
    """Of all of them, as they are stored."""
    if isinstance(weights, StoredWeights):
        return sum(header.num_bytes for header in weights.headers.values())
    return sum(as_stored(weight).num_bytes for weight in weights.values())


def as_stored(weight: StoredWeight | np.ndarray) -> StoredWeight:
    """An array as it is, or as float32."""
    if isinstance(weight, StoredWeight):
        return weight
    return StoredWeight("f32", weight.shape, np.ascontiguousarray(weight, dtype=np.float32))


def stack(weights: list[StoredWeight]) -> StoredWeight:
    """Matrices of one format and the same inputs, one below the other."""
    first = weights[0]
    if len(weights) == 1:
        return first

    def joined(arrays: list[np.ndarray | None]) -> np.ndarray | None:
        return None if arrays[0] is None else np.concatenate([each for each in arrays if each is not None])

    values = np.concatenate([each.values for each in weights])
    return StoredWeight(
        first.format,
        (sum(each.shape[0] for each in weights), first.shape[1]),
        values,
        joined([each.scales for each in weights]),
        joined([each.minimums for each in weights]),
    )


@np.errstate(over="ignore")
def _to_half(values: np.ndarray | None) -> np.ndarray | None:
    if values is None:
        return None
    rounded = values.astype(np.float16).astype(np.float32)
    return values if np.array_equal(values, rounded) else rounded


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the bits of the nearest bfloat16, ties to even; uint16 of the same shape."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= 16
    is_nan = np.isnan(values)
    if is_nan.any():
        rounded[is_nan] = (bits[is_nan] >> 16) | 0x40  # rounding up would make some of them infinite
    return rounded.astype(np.uint16)
