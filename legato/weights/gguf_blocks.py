"""ggml's blocks of numbers taken apart: which format holds each type, and its blocks as groups of 32.

Every type is read so that its decoded numbers have the bits of ggml's own: float32 products in its order. The
layouts are those of ggml's block structures (ggml-common.h).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from legato.backends.group_packing import pack_q4, pack_q5, pack_q6
from legato.backends.stored_weight import GROUP_LEN, StoredWeight, WeightFormat

K_LEN = 256  # numbers of a block of a K type
CHUNK_BLOCKS = 8192  # taken apart at once: what is between stays small

# Of IQ4_NL and IQ4_XS: what the numbers 0 to 15 stand for.
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of 32, in order, as StoredWeight has them: values [groups, bytes], the others [groups]."""

    values: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class BlockType:
    """How blocks uint8 [blocks, bytes] become groups of a format, or float32 [blocks, 256] for "f32"."""

    format: WeightFormat
    take_apart: Callable[[np.ndarray], Groups | np.ndarray]


@np.errstate(over="ignore", invalid="ignore")  # scales may be anything, in a hostile file
def read_blocks(block_type: BlockType, blocks: np.ndarray, shape: tuple[int, ...]) -> StoredWeight:
    """blocks  uint8 [blocks, bytes of a block], row after row of an array of this shape."""
    starts = range(0, len(blocks), CHUNK_BLOCKS)
    parts = [block_type.take_apart(blocks[start : start + CHUNK_BLOCKS]) for start in starts]
    arrays = [each for each in parts if isinstance(each, np.ndarray)]
    if arrays:
        return StoredWeight(block_type.format, shape, np.concatenate(arrays).reshape(shape))
    groups = [each for each in parts if isinstance(each, Groups)]
    minimums = [each.minimums for each in groups if each.minimums is not None]
    of_groups = (*shape[:-1], shape[-1] // GROUP_LEN)
    return StoredWeight(
        block_type.format,
        shape,
        np.concatenate([each.values for each in groups]).reshape(*shape[:-1], -1),
        np.concatenate([each.scales for each in groups]).reshape(of_groups),
        np.concatenate(minimums).reshape(of_groups) if minimums else None,
    )


def q4_0(blocks: np.ndarray) -> Groups:
    """{half d, 16 bytes}: (q - 8) * d; low halves of bytes are numbers 0 to 15, high ones 16 to 31."""
    scales = _halves(blocks, 0)
    return Groups(blocks[:, 2:], scales, scales * np.float32(-8))


def q4_1(blocks: np.ndarray) -> Groups:
    """{half d, half m, 16 bytes}: q * d + m; q as in Q4_0."""
    return Groups(blocks[:, 4:], _halves(blocks, 0), _halves(blocks, 2))


def q5_0(blocks: np.ndarray) -> Groups:
    """{half d, 32 bits, 16 bytes}: (q - 16) * d; bit j is the fifth of number j, the others as in Q4_0."""
    scales = _halves(blocks, 0)
    return Groups(pack_q5(_five_bits(blocks[:, 2:])), scales, scales * np.float32(-16))


def q5_1(blocks: np.ndarray) -> Groups:
    """{half d, half m, 32 bits, 16 bytes}: q * d + m; q as in Q5_0."""
    return Groups(pack_q5(_five_bits(blocks[:, 4:])), _halves(blocks, 0), _halves(blocks, 2))


def q8_0(blocks: np.ndarray) -> Groups:
    """{half d, int8 q[32]}: q * d."""
    return Groups(blocks[:, 2:].view(np.int8), _halves(blocks, 0))


def iq4_nl(blocks: np.ndarray) -> Groups:
    """{half d, 16 bytes}: level[q] * d; q as in Q4_0."""
    return Groups(IQ4_LEVELS[_four_bits(blocks[:, 2:])], _halves(blocks, 0))


def q2_k(blocks: np.ndarray) -> np.ndarray:
    """{16 bytes, 64 bytes, half d, half dmin}: q * (d * low) - dmin * high, a byte for each 16 numbers."""
    low, high = blocks[:, :16] & 15, blocks[:, :16] >> 4
    scales, minimums = _halves(blocks, 80)[:, None] * low, _halves(blocks, 82)[:, None] * high
    values: np.ndarray = _two_bits(blocks[:, 16:80]).reshape(-1, 16, 16) * scales[..., None]
    values -= minimums[..., None]
    return values.reshape(-1, K_LEN)


def q3_k(blocks: np.ndarray) -> Groups:
    """{32 bytes, 64 bytes, 12 bytes, half d}: (q - 4) * (d * (scale - 32)); the first hold third bits."""
    third = np.unpackbits(blocks[:, :32].reshape(-1, 1, 32), axis=1, bitorder="little")  # [blocks, 8, 32]
    q = _two_bits(blocks[:, 32:96]) | third.reshape(-1, K_LEN) << 2
    of_scales = blocks[:, 96:108]
    low = _four_bits(of_scales[:, :8])
    high = (of_scales[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    return _q6_groups(
        q.view(np.int8) - np.int8(4), (low | high << 4).view(np.int8) - np.int8(32), blocks, 108
    )


def q4_k(blocks: np.ndarray) -> Groups:
    """{half d, half dmin, 12 bytes, 128 bytes}: q * (d * scale) - dmin * minimum, both for 32 numbers."""
    q = _nibble_rows(blocks[:, 16:], 32)
    return Groups(pack_q4(q.reshape(-1, GROUP_LEN)), *_k_scales(blocks))


def q5_k(blocks: np.ndarray) -> Groups:
    """{half d, half dmin, 12 bytes, 32 bytes, 128 bytes}: as Q4_K; bit g of byte j is fifth in q[g][j]."""
    fifth = np.unpackbits(blocks[:, 16:48].reshape(-1, 1, 32), axis=1, bitorder="little")
    q = _nibble_rows(blocks[:, 48:], 32).reshape(-1, 8, 32) | fifth << 4
    return Groups(pack_q5(q.reshape(-1, GROUP_LEN)), *_k_scales(blocks))


def q6_k(blocks: np.ndarray) -> Groups:
    """{128 bytes, 64 bytes, int8 scales[16], half d}: (q - 32) * (d * scale), a scale for 16 numbers."""
    q = _nibble_rows(blocks[:, :128], 64) | _two_bits(blocks[:, 128:192]) << 4
    return _q6_groups(q.view(np.int8) - np.int8(32), blocks[:, 192:208].view(np.int8), blocks, 208)


def iq4_xs(blocks: np.ndarray) -> Groups:
    """{half d, 16 bits, 4 bytes, 128 bytes}: level[q] * (d * (scale - 32)), for 32 numbers; q as in Q4_0."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 8)
    multipliers = (low | high << 4).view(np.int8) - np.int8(32)
    q = _four_bits(blocks[:, 8:].reshape(-1, 16))
    return Groups(IQ4_LEVELS[q], (_halves(blocks, 0)[:, None] * multipliers).reshape(-1))


def _halves(blocks: np.ndarray, offset: int) -> np.ndarray:
    """The half at this byte of each block, as float32 [blocks]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)[:, 0]


def _four_bits(packed: np.ndarray) -> np.ndarray:
    """[rows, bytes] to [rows, 2 * bytes]: all low halves, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _five_bits(packed: np.ndarray) -> np.ndarray:
    """[blocks, 4 + 16 bytes] to [blocks, 32]."""
    fifth = np.unpackbits(packed[:, :4], axis=1, bitorder="little")
    q: np.ndarray = _four_bits(packed[:, 4:]) | fifth << 4
    return q


def _nibble_rows(packed: np.ndarray, row_bytes: int) -> np.ndarray:
    """[blocks, 128] to [blocks, 256]: of each so many bytes all low halves, then all high ones."""
    return _four_bits(packed.reshape(-1, row_bytes)).reshape(-1, K_LEN)


def _two_bits(packed: np.ndarray) -> np.ndarray:
    """[blocks, 64] to [blocks, 256]: of each 32 bytes all lowest pairs of bits, then the next."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (packed.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, K_LEN)


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d * scale and -dmin * minimum of each group of Q4_K and Q5_K, from 6 bits each in 12 bytes."""
    first, second, rest = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 48], axis=1)
    minimums = np.concatenate([second & 63, rest >> 4 | second >> 2 & 48], axis=1)
    d, dmin = _halves(blocks, 0)[:, None], _halves(blocks, 2)[:, None]
    return (d * scales).reshape(-1), (-dmin * minimums).reshape(-1)


def _q6_groups(q: np.ndarray, multipliers: np.ndarray, blocks: np.ndarray, offset: int) -> Groups:
    """q int8 [blocks, 256], multipliers int8 [blocks, 16]; the blocks' scale is the half at this byte."""
    packed = pack_q6(q.reshape(-1, GROUP_LEN), np.ascontiguousarray(multipliers).reshape(-1, 2))
    return Groups(packed, np.repeat(_halves(blocks, offset), K_LEN // GROUP_LEN))


BLOCK_TYPES = {
    "Q4_0": BlockType("q4", q4_0),
    "Q4_1": BlockType("q4", q4_1),
    "Q5_0": BlockType("q5", q5_0),
    "Q5_1": BlockType("q5", q5_1),
    "Q8_0": BlockType("q8", q8_0),
    "Q2_K": BlockType("f32", q2_k),
    "Q3_K": BlockType("q6", q3_k),
    "Q4_K": BlockType("q4", q4_k),
    "Q5_K": BlockType("q5", q5_k),
    "Q6_K": BlockType("q6", q6_k),
    "IQ4_NL": BlockType("q8", iq4_nl),
    "IQ4_XS": BlockType("q8", iq4_xs),
}
