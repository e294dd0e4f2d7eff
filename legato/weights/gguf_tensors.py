"""Tensors in a .gguf file, read one by one; what is quantised stays so wherever a format holds it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from legato.backends.stored_weight import BITS, StoredWeight, WeightFormat
from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import GGML_TYPES, GgufTensor, read_gguf_model
from legato.weights.gguf_blocks import BLOCK_TYPES, read_blocks

FLOATS: dict[str, tuple[WeightFormat, np.dtype[Any]]] = {
    "F32": ("f32", np.dtype("<f4")),
    "F16": ("f16", np.dtype("<u2")),
    "BF16": ("bf16", np.dtype("<u2")),
}
READ_TYPES = (*FLOATS, *BLOCK_TYPES)
BLOCK_BYTES = {each.name: each.block_bytes for each in GGML_TYPES.values()}


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """What is known of a weight before it is read: `type` is that of the file."""

    type: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """As it is kept: what no format holds becomes bfloat16."""
        if self.type in FLOATS:
            bits = BITS[FLOATS[self.type][0]]
        elif self.type in BLOCK_TYPES:
            bits = min(BITS[BLOCK_TYPES[self.type].format], BITS["bf16"])
        else:
            bits = BITS["f32"]  # it cannot be read: that is said when it is looked up
        return int(math.prod(self.shape) * bits / 8)


class GgufFile:
    """A file whose tensors are read one by one. Raises ModelError, naming it, for an unsound header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = read_gguf_model(path).tensors
        self.tensors = {name: GgufWeight(each.type, each.shape) for name, each in self._tensors.items()}

    def read(self, name: str, row_order: np.ndarray | None = None, rows: range | None = None) -> StoredWeight:
        """A tensor as it is stored, its rows taken in `row_order` where one is given, or only some of them.

        Raises ModelError, naming the tensor and its type, when the type is none that is read.
        """
        tensor = self._tensors[name]
        if tensor.type not in READ_TYPES:
            raise ModelError(
                f"{self.path}: tensor {name!r} is {tensor.type}; {', '.join(READ_TYPES)} are read"
            )
        shape = tensor.shape if rows is None else (len(rows), tensor.shape[-1])
        raw = self._raw(tensor, rows)
        if row_order is not None:
            raw = raw.reshape(tensor.shape[0], -1)[row_order].reshape(-1)
        if tensor.type in FLOATS:
            weight_format, dtype = FLOATS[tensor.type]
            return StoredWeight(weight_format, shape, raw.view(dtype).reshape(shape))
        blocks = raw.reshape(-1, BLOCK_BYTES[tensor.type])
        return read_blocks(BLOCK_TYPES[tensor.type], blocks, shape)

    def _raw(self, tensor: GgufTensor, rows: range | None) -> np.ndarray:
        row_bytes = tensor.num_bytes // max(math.prod(tensor.shape[:-1]), 1)
        start, num_bytes = (
            (0, tensor.num_bytes) if rows is None else (rows.start * row_bytes, len(rows) * row_bytes)
        )
        raw = np.fromfile(tensor.path, np.uint8, num_bytes, offset=tensor.offset + start)
        if len(raw) < num_bytes:
            raise ModelError(f"{tensor.path}: tensor {tensor.name!r} is cut off; download the file again")
        return raw


def split_half_rows(num_heads: int, head_dim: int) -> np.ndarray:
    """The order that takes Q or K rows from llama.cpp's layout back to Hugging Face's.

    Files of the llama family hold the two halves of each head interleaved, because llama.cpp rotates
    neighbours; our rotation, like Hugging Face's, pairs row j with row j + head_dim / 2.
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
