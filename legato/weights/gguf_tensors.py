"""Tensors in a .gguf file: ggml's block formats to float32."""

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from legato.core.errors import ModelError
from legato.modelfiles.gguf_header import GgufTensor, read_gguf_header
from legato.weights.safetensors_file import widen_bfloat16

CHUNK_BLOCKS = 2048  # 256 KiB of float32: one chunk passes all its operations inside the L2 cache
BLOCK_LEN = 32


class GgufFile:
    """A file mapped into memory. Raises ModelError, naming it, when its header is not consistent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_gguf_header(path).tensors
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, name: str, row_order: np.ndarray | None = None) -> np.ndarray:
        """A tensor as float32, its rows taken in `row_order` where one is given.

        Raises ModelError, naming the tensor and its type, when the type is none that is decoded.
        """
        tensor = self.tensors[name]
        decode = _DECODERS.get(tensor.type)
        if decode is None:
            readable = ", ".join(_DECODERS)
            raise ModelError(f"{self.path}: tensor {name!r} is {tensor.type}; {readable} are read")
        raw = self._raw(tensor)
        if row_order is not None:
            raw = raw.reshape(tensor.shape[0], -1)[row_order].reshape(-1)
        return decode(raw).reshape(tensor.shape)

    def _raw(self, tensor: GgufTensor) -> np.ndarray:
        return np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)


def split_half_rows(num_heads: int, head_dim: int) -> np.ndarray:
    """The order that takes Q or K rows from llama.cpp's layout back to Hugging Face's.

    Files of the llama family hold the two halves of each head interleaved, because llama.cpp rotates
    neighbours; our rotation, like Hugging Face's, pairs row j with row j + head_dim / 2.
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def decode_f32(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f4").astype(np.float32)


def decode_f16(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f2").astype(np.float32)


def decode_bf16(raw: np.ndarray) -> np.ndarray:
    return widen_bfloat16(raw.view("<u2"))


def decode_q8_0(raw: np.ndarray) -> np.ndarray:
    """Blocks of {float16 d, int8 q[32]}: q * d."""

    def decode(blocks: np.ndarray, out: np.ndarray) -> None:
        np.multiply(blocks[:, 2:].view(np.int8), _float16_at(blocks, 0), out=out)

    return _by_chunks(raw, 34, decode)


def decode_q4_0(raw: np.ndarray) -> np.ndarray:
    """Blocks of {float16 d, 16 bytes}: (q - 8) * d; low nibbles are values 0-15, high ones 16-31."""

    def decode(blocks: np.ndarray, out: np.ndarray) -> None:
        _unpack_nibbles(blocks[:, 2:], out)
        out -= np.float32(8)
        out *= _float16_at(blocks, 0)

    return _by_chunks(raw, 18, decode)


def decode_q4_1(raw: np.ndarray) -> np.ndarray:
    """Blocks of {float16 d, float16 m, 16 bytes}: q * d + m; nibbles as in Q4_0."""

    def decode(blocks: np.ndarray, out: np.ndarray) -> None:
        _unpack_nibbles(blocks[:, 4:], out)
        out *= _float16_at(blocks, 0)
        out += _float16_at(blocks, 2)

    return _by_chunks(raw, 20, decode)


def _by_chunks(
    raw: np.ndarray, block_bytes: int, decode: Callable[[np.ndarray, np.ndarray], None]
) -> np.ndarray:
    blocks = raw.reshape(-1, block_bytes)
    out = np.empty((len(blocks), BLOCK_LEN), np.float32)
    for start in range(0, len(blocks), CHUNK_BLOCKS):
        decode(blocks[start : start + CHUNK_BLOCKS], out[start : start + CHUNK_BLOCKS])
    return out.reshape(-1)


def _float16_at(blocks: np.ndarray, offset: int) -> np.ndarray:
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)


def _unpack_nibbles(packed: np.ndarray, out: np.ndarray) -> None:
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


_DECODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": decode_f32,
    "F16": decode_f16,
    "BF16": decode_bf16,
    "Q8_0": decode_q8_0,
    "Q4_0": decode_q4_0,
    "Q4_1": decode_q4_1,
}
