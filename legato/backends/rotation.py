"""The angles of rotary position embeddings, the same for every backend."""

import numpy as np

from legato.program.ops import RopeConfig


def rotation_table(rope: RopeConfig, num_positions: int) -> np.ndarray:
    """cos and sin of every position's angles, times the magnitude: [2, num_positions, num_frequencies].

    Rounded once from float64.
    """
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * np.array(rope.frequencies)
    return (np.stack([np.cos(angles), np.sin(angles)]) * rope.magnitude).astype(np.float32)


def still_table(head_dim: int, num_positions: int) -> np.ndarray:
    """Like rotation_table, of angles that are all 0: for models that learn their positions."""
    shape = (num_positions, head_dim // 2)
    return np.stack([np.ones(shape, np.float32), np.zeros(shape, np.float32)])
