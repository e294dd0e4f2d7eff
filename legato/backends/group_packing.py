"""How the small numbers of a group of 32 share its bytes: the layouts that kernels read, made and read back.

Four bits each: byte j of 16 holds q[j] low and q[j + 16] high. What is above four bits follows, in words of
four bytes whose byte b is of the numbers 4 i + b: a word of one bit each, or one of two bits for each half.
"""

import numpy as np

HALF = 16


def pack_q4(q: np.ndarray) -> np.ndarray:
    """uint8 [groups, 32], each 0 to 15, in [groups, 16]."""
    packed: np.ndarray = q[:, :HALF] | q[:, HALF:] << 4
    return packed


def pack_q5(q: np.ndarray) -> np.ndarray:
    """uint8 [groups, 32], each 0 to 31, in [groups, 20]: bit i of byte b in the last word is q[4 i + b]'s."""
    high = np.packbits((q >> 4).reshape(-1, 8, 4), axis=1, bitorder="little")
    return np.concatenate([pack_q4(q & 15), high.reshape(-1, 4)], axis=1)


def pack_q6(q: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    """int8 [groups, 32], each -32 to 31, and int8 [groups, 2] of its halves, in [groups, 26].

    First come the multipliers, then q + 32 as q4 and two words, one of each half: bits 2 i and 2 i + 1 of
    byte b are of its number 4 i + b.
    """
    above = (q + np.int8(32)).view(np.uint8)
    parts = (above >> 4).reshape(-1, 2, 4, 4)
    high = parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6
    return np.concatenate([multipliers.view(np.uint8), pack_q4(above & 15), high.reshape(-1, 8)], axis=1)


def unpack_q4(packed: np.ndarray, out: np.ndarray) -> None:
    """uint8 [groups, 16] into out [groups, 32]."""
    out[:, :HALF] = packed & 15
    out[:, HALF:] = packed >> 4


def unpack_q5(packed: np.ndarray, out: np.ndarray) -> None:
    """uint8 [groups, 20] into out [groups, 32]."""
    unpack_q4(packed[:, :16], out)
    high = np.unpackbits(packed[:, 16:].reshape(-1, 1, 4), axis=1, bitorder="little")
    out += (high << 4).reshape(out.shape)


def unpack_q6(packed: np.ndarray, out: np.ndarray) -> np.ndarray:
    """uint8 [groups, 26] into out [groups, 32]; gives the multipliers, int8 [groups, 2]."""
    unpack_q4(packed[:, 2:18], out)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = packed[:, 18:].reshape(-1, 2, 1, 4) >> shifts & 3
    out += (high << 4).reshape(out.shape)
    out -= 32
    return packed[:, :2].view(np.int8)
