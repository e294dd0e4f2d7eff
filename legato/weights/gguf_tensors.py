"""Tensors in a .gguf file: ggml's blocks, taken apart and not decoded."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from legato.backends.stored_weight import GROUP_LEN, StoredWeight
from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import GgufTensor, read_gguf_header

Shape = tuple[int, ...]


class GgufFile:
    """A file whose tensors are read one by one. Raises ModelError, naming it, for an unsound header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_gguf_header(path).tensors

    def read(self, name: str, row_order: np.ndarray | None = None) -> StoredWeight:
        """A tensor as it is stored, its rows taken in `row_order` where one is given.

        Raises ModelError, naming the tensor and its type, when the type is none that is read.
        """
        tensor = self.tensors[name]
        read = _READERS.get(tensor.type)
        if read is None:
            readable = ", ".join(_READERS)
            raise ModelError(f"{self.path}: tensor {name!r} is {tensor.type}; {readable} are read")
        raw = self._raw(tensor)
        if row_order is not None:
            raw = raw.reshape(tensor.shape[0], -1)[row_order].reshape(-1)
        return read(raw, tensor.shape)

    def _raw(self, tensor: GgufTensor) -> np.ndarray:
        raw = np.fromfile(self.path, np.uint8, tensor.num_bytes, offset=tensor.offset)
        if len(raw) < tensor.num_bytes:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} is cut off; download the file again")
        return raw


def split_half_rows(num_heads: int, head_dim: int) -> np.ndarray:
    """The order that takes Q or K rows from llama.cpp's layout back to Hugging Face's.

    Files of the llama family hold the two halves of each head interleaved, because llama.cpp rotates
    neighbours; our rotation, like Hugging Face's, pairs row j with row j + head_dim / 2.
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def read_f32(raw: np.ndarray, shape: Shape) -> StoredWeight:
    return StoredWeight("f32", shape, raw.view("<f4").astype(np.float32, copy=False).reshape(shape))


def read_f16(raw: np.ndarray, shape: Shape) -> StoredWeight:
    return StoredWeight("f16", shape, raw.view("<u2").astype(np.uint16, copy=False).reshape(shape))


def read_bf16(raw: np.ndarray, shape: Shape) -> StoredWeight:
    return StoredWeight("bf16", shape, raw.view("<u2").astype(np.uint16, copy=False).reshape(shape))


def read_q8_0(raw: np.ndarray, shape: Shape) -> StoredWeight:
    """Blocks of {float16 d, int8 q[32]}: q * d."""
    blocks = raw.reshape(-1, 34)
    values = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).reshape(shape)
    return StoredWeight("q8", shape, values, _float16_at(blocks, 0, shape))


def read_q4_0(raw: np.ndarray, shape: Shape) -> StoredWeight:
    """Blocks of {float16 d, 16 bytes}: (q - 8) * d; low nibbles are values 0-15, high ones 16-31."""
    blocks = raw.reshape(-1, 18)
    scales = _float16_at(blocks, 0, shape)
    return StoredWeight("q4", shape, _packed(blocks[:, 2:], shape), scales, scales * np.float32(-8))


def read_q4_1(raw: np.ndarray, shape: Shape) -> StoredWeight:
    """Blocks of {float16 d, float16 m, 16 bytes}: q * d + m; nibbles as in Q4_0."""
    blocks = raw.reshape(-1, 20)
    scales, minimums = (_float16_at(blocks, offset, shape) for offset in (0, 2))
    return StoredWeight("q4", shape, _packed(blocks[:, 4:], shape), scales, minimums)


def _packed(nibbles: np.ndarray, shape: Shape) -> np.ndarray:
    return np.ascontiguousarray(nibbles).reshape(*shape[:-1], shape[-1] // 2)


def _float16_at(blocks: np.ndarray, offset: int, shape: Shape) -> np.ndarray:
    values = np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)
    return values.reshape(*shape[:-1], shape[-1] // GROUP_LEN)


_READERS: dict[str, Callable[[np.ndarray, Shape], StoredWeight]] = {
    "F32": read_f32,
    "F16": read_f16,
    "BF16": read_bf16,
    "Q8_0": read_q8_0,
    "Q4_0": read_q4_0,
    "Q4_1": read_q4_1,
}
