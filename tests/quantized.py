"""Weights of a test model in the formats that files hold."""

from collections.abc import Mapping

import numpy as np

from legato.backends.group_packing import pack_q4, pack_q5, pack_q6
from legato.backends.stored_weight import GROUP_LEN, StoredWeight, to_bfloat16

FORMATS = ("f32", "bf16", "q4", "q8", "mixed")

# Of the format "mixed", as files of mixed types are: the other matrices are q4.
MIXED = {"v_proj": "q6", "down_proj": "q6", "o_proj": "q5", "embed_tokens": "q6", "lm_head": "q8"}


def as_q4(values: np.ndarray) -> StoredWeight:
    """Groups of 32 between their smallest and their largest value, as Q4_1 keeps them: scales are float16."""
    scales, minimums, q = _levels(values, 15)
    return StoredWeight("q4", values.shape, pack_q4(q).reshape(*values.shape[:-1], -1), scales, minimums)


def as_q5(values: np.ndarray) -> StoredWeight:
    """The same with 32 levels, as Q5_1 keeps them."""
    scales, minimums, q = _levels(values, 31)
    return StoredWeight("q5", values.shape, pack_q5(q).reshape(*values.shape[:-1], -1), scales, minimums)


def as_q6(values: np.ndarray) -> StoredWeight:
    """Groups of 32 whose halves share a scale but for an int8 multiplier, as in Q6_K."""
    halves = values.reshape(-1, 2, GROUP_LEN // 2)
    largest = np.abs(halves).max(axis=-1) / 31
    scales = (largest.max(axis=-1) / 127).astype(np.float16).astype(np.float32)
    multipliers = np.clip(np.rint(largest / scales[:, None]), 1, 127).astype(np.int8)
    q = np.clip(np.rint(halves / (scales[:, None] * multipliers)[..., None]), -32, 31).astype(np.int8)
    packed = pack_q6(q.reshape(-1, GROUP_LEN), multipliers).reshape(*values.shape[:-1], -1)
    return StoredWeight("q6", values.shape, packed, scales.reshape(*values.shape[:-1], -1))


def _levels(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales and minimums [..., groups], and q [all groups, 32] from 0 to `most`."""
    groups = values.reshape(*values.shape[:-1], -1, GROUP_LEN)
    minimums = groups.min(axis=-1).astype(np.float16).astype(np.float32)
    scales = ((groups.max(axis=-1) - minimums) / most).astype(np.float16).astype(np.float32)
    q = np.clip(np.rint((groups - minimums[..., None]) / scales[..., None]), 0, most).astype(np.uint8)
    return scales, minimums, q.reshape(-1, GROUP_LEN)


def as_q8(values: np.ndarray) -> StoredWeight:
    """Groups of 32 with a float16 scale, as Q8_0 keeps them."""
    groups = values.reshape(*values.shape[:-1], -1, GROUP_LEN)
    scales = (np.abs(groups).max(axis=-1) / 127).astype(np.float16).astype(np.float32)
    q = np.clip(np.rint(groups / scales[..., None]), -127, 127).astype(np.int8)
    return StoredWeight("q8", values.shape, q.reshape(values.shape), scales)


_QUANTISED = {"q4": as_q4, "q5": as_q5, "q6": as_q6, "q8": as_q8}


def as_format(weights: Mapping[str, np.ndarray], name: str) -> dict[str, StoredWeight | np.ndarray]:
    """The matrices in one format; q4 keeps embeddings in q8, as files do. Vectors stay float32."""

    def convert(weight: str, values: np.ndarray) -> StoredWeight | np.ndarray:
        if values.ndim == 1 or name == "f32":
            return values
        if name == "bf16":
            return StoredWeight("bf16", values.shape, to_bfloat16(values))
        if name == "mixed":
            return _QUANTISED[MIXED.get(weight.rpartition(".")[2], "q4")](values)
        is_q8 = name == "q8" or weight in ("embed_tokens", "lm_head")
        return as_q8(values) if is_q8 else as_q4(values)

    return {weight: convert(weight, values) for weight, values in weights.items()}
