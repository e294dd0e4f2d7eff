"""Small tapes: one operation fed with chosen rows, and a two-layer decoder with its numpy twin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from legato.backends.reference import attend, linear, rms_norm, rotate, rotation_table
from legato.models.rope import plain_rope

if TYPE_CHECKING:
    from legato.kernels._native import Device, KVStore, PackedWeight, Tape

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, VOCAB, LAYERS = 64, 4, 2, 32, 96, 50, 2
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
MAX_POSITION, EPS, SCALE = 256, 1e-5, HEAD_DIM**-0.5
COS, SIN = rotation_table(plain_rope(HEAD_DIM, 10_000.0, MAX_POSITION), MAX_POSITION)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def random_rows(num_rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, width), dtype=np.float32)


def apply(device: "Device", x: np.ndarray, record: Callable[["Tape", int], int]) -> np.ndarray:
    """What the recorded operations make of the rows of x: they enter as an embedding's, and all leave."""
    tape = device.tape(device.kv_store(1, 1, len(x), 1, 32, "f32"), len(x), len(x))
    tape.finish(tape.select(record(tape, tape.embedding(device.pack("f32", x)))))
    rows = np.arange(len(x), dtype=np.int32)
    return tape.forward(rows, rows, int32(0, len(x)), int32(len(x)), int32(0)[None], rows).copy()


@dataclass
class Decoder:
    """Weights of a decoder, packed on demand; q8 weights are rounded first, so that numpy sees the same."""

    device: "Device"
    weight_format: str = "f32"
    is_bf16: bool = False
    page_size: int = 8
    max_tokens: int = 64
    kv: "KVStore" = field(init=False)
    tape: "Tape" = field(init=False)

    def __post_init__(self) -> None:
        shapes = [(QKV, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * WIDE, HIDDEN), (HIDDEN, WIDE)]
        self.matrices = [
            [self._matrix(*shape, seed=10 * layer + i) for i, shape in enumerate(shapes)]
            for layer in range(LAYERS)
        ]
        self.embedding = self._matrix(VOCAB, HIDDEN, seed=99)
        self.norm = 1 + random_rows(1, HIDDEN, seed=98)[0] / 10
        num_pages = 4 * MAX_POSITION // self.page_size
        self.kv = self.device.kv_store(
            LAYERS, num_pages, self.page_size, KV_HEADS, HEAD_DIM, "bf16" if self.is_bf16 else "f32"
        )
        self.tape = self._record()

    def _matrix(self, outputs: int, inputs: int, seed: int) -> np.ndarray:
        values = random_rows(outputs, inputs, seed) / np.float32(inputs**0.5)
        return dequantize(*quantize(values)) if self.weight_format == "q8" else values

    def pack(self, matrix: np.ndarray) -> "PackedWeight":
        if self.weight_format == "q8":
            return self.device.pack("q8", *quantize(matrix))
        return self.device.pack("f32", matrix)

    def _record(self) -> "Tape":
        tape = self.device.tape(self.kv, self.max_tokens, 16)
        embedding = self.pack(self.embedding)
        x = tape.embedding(embedding)
        for layer, (qkv, out, gate_up, down) in enumerate(self.matrices):
            h = tape.linear(tape.rms_norm(x, self.norm, EPS), self.pack(qkv))
            tape.add_linear(x, tape.attention(h, COS, SIN, layer, HEADS, SCALE), self.pack(out))
            h = tape.linear(tape.rms_norm(x, self.norm, EPS), self.pack(gate_up))
            tape.add_linear(x, tape.activate(h, "silu", is_gated=True), self.pack(down))
        tape.finish(tape.linear(tape.rms_norm(tape.select(x), self.norm, EPS), embedding))
        return tape

    def forward(self, *chunks: tuple[Sequence[int], int, Sequence[int]]) -> np.ndarray:
        """A step over chunks (token ids, first position, page ids); logits of each chunk's last token."""
        lens = [len(token_ids) for token_ids, _, _ in chunks]
        starts = np.cumsum([0, *lens], dtype=np.int32)
        page_table = np.zeros((len(chunks), max(len(pages) for _, _, pages in chunks)), np.int32)
        for row, (_, _, pages) in zip(page_table, chunks, strict=True):
            row[: len(pages)] = pages
        return self.tape.forward(
            np.concatenate([np.array(token_ids, np.int32) for token_ids, _, _ in chunks]),
            np.concatenate([np.arange(start, start + len(ids), dtype=np.int32) for ids, start, _ in chunks]),
            starts,
            np.array([start + len(ids) for ids, start, _ in chunks], np.int32),
            page_table,
            starts[1:] - 1,
        ).copy()

    def numpy_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The last token's logits by numpy: [vocab]."""
        x = self.embedding[list(token_ids)]
        for qkv, out, gate_up, down in self.matrices:
            h = linear(rms_norm(x, self.norm, EPS), [qkv])
            q, k, v = np.split(h, [HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM], axis=1)
            q, k = (rotate(each, COS[: len(x)], SIN[: len(x)], HEAD_DIM) for each in (q, k))
            k, v = (each.reshape(-1, KV_HEADS, HEAD_DIM) for each in (k, v))
            attended = [attend(q[i], k[: i + 1], v[: i + 1], SCALE) for i in range(len(x))]
            x = x + linear(np.stack(attended), [out])
            gate, up = np.split(linear(rms_norm(x, self.norm, EPS), [gate_up]), 2, axis=1)
            x = x + linear(silu_mul(gate, up), [down])
        return linear(rms_norm(x[-1:], self.norm, EPS), [self.embedding])[0]


def silu_mul(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return gate / (1 + np.exp(-gate)) * up


def quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and a scale for each group of 32 inputs."""
    groups = matrix.reshape(len(matrix), -1, 32)
    scales = np.abs(groups).max(axis=-1) / np.float32(127)
    return np.rint(groups / scales[..., None]).astype(np.int8).reshape(matrix.shape), scales


def dequantize(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return (values.reshape(*scales.shape, 32) * scales[..., None]).reshape(values.shape)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
