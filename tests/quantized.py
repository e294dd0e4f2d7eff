"""Weights of a test model in the formats that files hold."""

from collections.abc import Mapping

import numpy as np

from legato.backends.stored_weight import GROUP_LEN, StoredWeight, to_bfloat16

FORMATS = ("f32", "bf16", "q4", "q8")


def as_q4(values: np.ndarray) -> StoredWeight:
    """Groups of 32 between their smallest and their largest value, as Q4_1 keeps them: scales are float16."""
    groups = values.reshape(*values.shape[:-1], -1, GROUP_LEN)
    minimums = groups.min(axis=-1).astype(np.float16).astype(np.float32)
    scales = ((groups.max(axis=-1) - minimums) / 15).astype(np.float16).astype(np.float32)
    q = np.clip(np.rint((groups - minimums[..., None]) / scales[..., None]), 0, 15).astype(np.uint8)
    packed = (q[..., :16] | q[..., 16:] << 4).reshape(*values.shape[:-1], -1)
    return StoredWeight("q4", values.shape, packed, scales, minimums)


def as_q8(values: np.ndarray) -> StoredWeight:
    """Groups of 32 with a float16 scale, as Q8_0 keeps them."""
    groups = values.reshape(*values.shape[:-1], -1, GROUP_LEN)
    scales = (np.abs(groups).max(axis=-1) / 127).astype(np.float16).astype(np.float32)
    q = np.clip(np.rint(groups / scales[..., None]), -127, 127).astype(np.int8)
    return StoredWeight("q8", values.shape, q.reshape(values.shape), scales)


def as_format(weights: Mapping[str, np.ndarray], name: str) -> dict[str, StoredWeight | np.ndarray]:
    """The matrices in one format; q4 keeps embeddings in q8, as files do. Vectors stay float32."""

    def convert(weight: str, values: np.ndarray) -> StoredWeight | np.ndarray:
        if values.ndim == 1 or name == "f32":
            return values
        if name == "bf16":
            return StoredWeight("bf16", values.shape, to_bfloat16(values))
        is_q8 = name == "q8" or weight in ("embed_tokens", "lm_head")
        return as_q8(values) if is_q8 else as_q4(values)

    return {weight: convert(weight, values) for weight, values in weights.items()}
