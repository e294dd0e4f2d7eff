"""Random ggml blocks of every type, whose numbers are about as large as a model's weights."""

import numpy as np

from legato.modelfiles.gguf_header import GGML_TYPES
from legato.weights.gguf_blocks import BLOCK_TYPES, read_blocks
from tests.model_builders import GGML_IDS

HALVES = {  # where a block has its halves
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
# Of the second half to the first, so that the numbers' mean is near zero.
RATIOS = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def weight_blocks(type_name: str, num_values: int, deviation: float, seed: int) -> bytes:
    """Random bits with such halves that the numbers have this standard deviation."""
    ggml_type = GGML_TYPES[GGML_IDS[type_name]]
    random = np.random.default_rng(seed)
    num_blocks = num_values // ggml_type.block_len
    blocks = random.integers(0, 256, (num_blocks, ggml_type.block_bytes), dtype=np.uint8)
    _set_halves(blocks, type_name, np.ones(num_blocks))
    plain = read_blocks(BLOCK_TYPES[type_name], blocks, (num_blocks, ggml_type.block_len)).float32()
    _set_halves(blocks, type_name, random.uniform(0.5, 1.5, num_blocks) * deviation / plain.std())
    return blocks.tobytes()


def _set_halves(blocks: np.ndarray, type_name: str, scales: np.ndarray) -> None:
    for offset, ratio in zip(HALVES[type_name], [1, RATIOS.get(type_name)], strict=False):
        halves = (scales * ratio).astype(np.float16)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
