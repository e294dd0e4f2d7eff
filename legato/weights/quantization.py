"""Float weights to 8 or 4 bits: groups of 32 inputs with a scale and, at 4 bits, a minimum."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from legato.backends.stored_weight import GROUP_LEN, StoredWeight, StoredWeights, TensorHeader
from legato.core.errors import ModelError

Weights = Mapping[str, StoredWeight]

FLOATS = ("F32", "F16", "BF16")
MOST_INT8, MOST_INT4 = 127, 15
INT4_ROUNDS = 3  # docs/decisions/quantization.md says what each is worth
TYPES = {"int8": "Q8", "int4": "Q4"}
GROUP_BYTES = {"Q8": 34, "Q4": 20}
ROUTER = ".router"  # how the names of those end
CHUNK_GROUPS = 4096  # with fewer the time goes into calls, with more into memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuantizedHeader:
    """A weight that is quantised when it is looked up, as the type "Q8" or "Q4"."""

    type: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """As kernels keep it: numbers, and scales and minimums as halves."""
        return math.prod(self.shape) // GROUP_LEN * GROUP_BYTES[self.type]


def quantize_weights(weights: Weights, quantization: str) -> Weights:
    """With "int8" or "int4" matrices of floats become q8 or q4; with "none" everything stays.

    They become so each time they are looked up: only those at work are in memory.
    4 bits are for the products of layers: for embeddings and the head they would cost too much. Routers stay:
    they are small, and an error in their scores chooses other experts.
    Vectors stay, and what is quantised already; and, as the log tells, inputs that are no multiple of 32.
    Looking one up raises ModelError, naming it, for a number that is not finite or too large for a half.
    """
    if quantization == "none":
        return weights
    headers = weights.headers if isinstance(weights, StoredWeights) else weights
    chosen = _chosen(headers, quantization)

    def read(name: str) -> StoredWeight:
        if name not in chosen:
            return weights[name]
        try:
            return quantize(weights[name], _precision(name, quantization))
        except ValueError as error:
            raise ModelError(f"weight {name!r} cannot be quantised: {error}") from error

    def header(name: str) -> TensorHeader:
        if name not in chosen:
            return headers[name]
        return QuantizedHeader(TYPES[_precision(name, quantization)], headers[name].shape)

    return StoredWeights({name: header(name) for name in headers}, read)


def _precision(name: str, quantization: str) -> str:
    return quantization if name.startswith("layers.") else "int8"


def _chosen(headers: Mapping[str, TensorHeader], quantization: str) -> set[str]:
    """Names of what is quantised; the log tells which matrices are not, and why."""
    matrices = {
        name: each for name, each in headers.items() if len(each.shape) == 2 and not name.endswith(ROUTER)
    }
    floats = {name for name, each in matrices.items() if each.type in FLOATS}
    odd = {name for name in floats if matrices[name].shape[1] % GROUP_LEN}
    if odd:
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in odd}))
        logger.warning(
            "--quantization %s leaves %s floats: their inputs are no multiple of 32", quantization, kinds
        )
    if matrices and not floats:
        types = ", ".join(sorted({each.type for each in matrices.values()}))
        logger.warning(
            "--quantization %s changes nothing: the model's file holds every matrix quantised already (%s)",
            quantization,
            types,
        )
    return floats - odd


def quantize(weight: StoredWeight, quantization: str) -> StoredWeight:
    """A matrix of floats [outputs, inputs], inputs a multiple of 32, as q8 ("int8") or q4 ("int4").

    Raises ValueError for a number that is not finite or too large for a half.
    """
    outputs, inputs = weight.shape
    groups = weight.values.reshape(-1, GROUP_LEN)
    is_int4 = quantization == "int4"
    values = np.empty((len(groups), 16), np.uint8) if is_int4 else np.empty(groups.shape, np.int8)
    scales, minimums = np.zeros((2, len(groups)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # such scales are found below
        for start in range(0, len(groups), CHUNK_GROUPS):
            chosen = slice(start, start + CHUNK_GROUPS)
            chunk = StoredWeight(weight.format, groups[chosen].shape, groups[chosen])
            x = np.ascontiguousarray(chunk.float32().T)  # [32, groups], so that sums run over whole vectors
            if is_int4:
                scales[chosen], minimums[chosen], q = int4_groups(x)
                values[chosen] = (q[:16] | q[16:] << 4).T
            else:
                scales[chosen], q = int8_groups(x)
                values[chosen] = q.T
    if not (np.isfinite(scales) & np.isfinite(minimums)).all():
        raise ValueError("it holds numbers that are not finite, or too large for a half")
    scales, minimums = (each.reshape(outputs, inputs // GROUP_LEN) for each in (scales, minimums))
    if is_int4:
        return StoredWeight("q4", weight.shape, values.reshape(outputs, inputs // 2), scales, minimums)
    return StoredWeight("q8", weight.shape, values.reshape(outputs, inputs), scales)


def int8_groups(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [32, groups] is about q * scale: scales [groups], q int8 from -127 to 127."""
    scales = _as_half(np.maximum(x.max(axis=0), -x.min(axis=0)) / np.float32(MOST_INT8))
    q = x * _reciprocal(scales)
    np.rint(q, out=q)
    np.clip(q, -MOST_INT8, MOST_INT8, out=q)
    return scales, q.astype(np.int8)


def int4_groups(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [32, groups] is about q * scale + minimum: scales and minimums [groups], q uint8 from 0 to 15.

    The 16 levels begin as the range of the group. Then in turn each x is rounded to the nearest level, and
    the levels move to where they fit these roundings best: least squares, so neither raises the error.
    """
    q = np.empty_like(x)
    x_sums, minimums = x.sum(axis=0), x.min(axis=0)
    scales = (x.max(axis=0) - minimums) / np.float32(MOST_INT4)
    for _ in range(INT4_ROUNDS):
        _round_to_levels(x, scales, minimums, out=q)
        scales, minimums = _fit_levels(x, x_sums, q)
    scales, minimums = _as_half(scales), _as_half(minimums)
    _round_to_levels(x, scales, minimums, out=q)
    return scales, minimums, q.astype(np.uint8)


def _round_to_levels(x: np.ndarray, scales: np.ndarray, minimums: np.ndarray, out: np.ndarray) -> None:
    np.subtract(x, minimums, out=out)
    out *= _reciprocal(scales)
    np.rint(out, out=out)
    np.clip(out, 0, MOST_INT4, out=out)


def _fit_levels(x: np.ndarray, x_sums: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scales and minimums whose q * scale + minimum is nearest to x."""
    q_sums = q.sum(axis=0)
    q_means = q_sums / np.float32(GROUP_LEN)
    variances = np.einsum("ij,ij->j", q, q) - q_sums * q_means
    covariances = np.einsum("ij,ij->j", q, x) - x_sums * q_means
    scales = covariances * _reciprocal(variances)
    return scales, x_sums / np.float32(GROUP_LEN) - scales * q_means


def _reciprocal(values: np.ndarray) -> np.ndarray:
    """1 / values, and 0 for 0: all numbers of a group without range are at level 0."""
    result = np.zeros_like(values)
    np.divide(np.float32(1), values, out=result, where=values != 0)
    return result


def _as_half(values: np.ndarray) -> np.ndarray:
    """The nearest halves, as float32: so kernels keep scales and minimums."""
    return values.astype(np.float16).astype(np.float32)
