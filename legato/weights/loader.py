"""A model's files to weights under the names that its program gives them."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from legato.backends.stored_weight import StoredWeight, StoredWeights, TensorHeader
from legato.core.errors import ModelError
from legato.program.ops import Program, Weight, weights_of
from legato.program.stored_tensors import StoredTensor, StoredTensors
from legato.weights.folder_tensors import open_folder
from legato.weights.gguf_tensors import GgufFile, split_half_rows
from legato.weights.quantized_folder import open_quantized

SHOWN_NAMES = 3

logger = logging.getLogger(__name__)


def load_weights(path: Path, program: Program, tensors: StoredTensors) -> StoredWeights:
    """The weights that a program reads, of a directory in Hugging Face layout or of a .gguf file.

    Headers are read and checked here; a weight itself is read each time it is looked up, as it is stored.
    Raises ModelError for a tensor that is missing or misshapen; looking one up, when its type is unreadable
    or a number of it is not finite.
    """
    if path.is_dir():
        places = open_folder(path)
        folder = open_quantized(path, places)
        headers: Mapping[str, TensorHeader] = folder.headers

        def read(tensor: StoredTensor, rows: range | None) -> StoredWeight:
            return folder.read(tensor.name, rows)

        def file_of(name: str) -> Path:
            return places[name].path if name in places else path
    else:
        gguf = GgufFile(path)
        headers = gguf.tensors

        def read(tensor: StoredTensor, rows: range | None) -> StoredWeight:
            order = None
            if tensor.is_interleaved:
                head_dim = tensors.head_dim
                order = split_half_rows(headers[tensor.name].shape[0] // head_dim, head_dim)
            return gguf.read(tensor.name, order, rows)

        def file_of(name: str) -> Path:
            return path

    return _load(path, program, tensors, headers, read, file_of)


def _load(
    path: Path,
    program: Program,
    tensors: StoredTensors,
    headers: Mapping[str, TensorHeader],
    read: Callable[[StoredTensor, range | None], StoredWeight],
    file_of: Callable[[str], Path],
) -> StoredWeights:
    weights = {weight.name: weight for op in program.ops for weight in weights_of(op)}
    tensors, prefix = _way(weights, tensors, headers)
    places = {name: tensors.of(name, prefix) for name in weights}
    num_parts = Counter(tensor.name for tensor in places.values())
    for name, tensor in places.items():
        _check(file_of(tensor.name), weights[name], tensor, headers, num_parts[tensor.name])
    used = {tensor.name for tensor in places.values()} | {tensors.of("lm_head", prefix).name}
    _tell_extra(path, sorted(headers.keys() - used), tensors.harmless)

    def read_checked(name: str) -> StoredWeight:
        tensor = places[name]
        weight = read(tensor, _rows(weights[name], tensor))
        if not weight.is_finite():
            where = file_of(tensor.name)
            raise ModelError(f"{where}: tensor {tensor.name!r} holds numbers that are not finite")
        return _turned(weight, tensor)

    turned = {
        name: _turned_header(headers[tensor.name], tensor, num_parts[tensor.name])
        for name, tensor in places.items()
    }
    return StoredWeights(turned, read_checked)


def _tell_extra(path: Path, names: list[str], harmless: tuple[str, ...]) -> None:
    """Warn of tensors that are not used, in one line. Raises ModelError for one that would have to be."""
    names = [name for name in names if not any(part in name for part in harmless)]
    for name in names:
        if name.endswith(".bias") and not path.is_dir():  # no setting says that it is not to be added
            raise ModelError(f"{path}: tensor {name!r}: this architecture has no such bias")
    if names:
        shown = ", ".join(map(repr, names[:SHOWN_NAMES])) + (", …" if len(names) > SHOWN_NAMES else "")
        logger.warning("%s: %d tensors are not used by this architecture: %s", path, len(names), shown)


def _way(
    weights: Mapping[str, Weight], tensors: StoredTensors, headers: Mapping[str, TensorHeader]
) -> tuple[StoredTensors, str]:
    """That and the prefix with which most names are found; the first where none is better."""

    def num_found(way: tuple[StoredTensors, str]) -> int:
        return sum(way[0].of(name, way[1]).name in headers for name in weights)

    return max(product(tensors.ways(), tensors.prefixes), key=num_found)


def _check(
    path: Path, weight: Weight, tensor: StoredTensor, headers: Mapping[str, TensorHeader], num_parts: int
) -> None:
    """num_parts: weights that the tensor holds."""
    if tensor.name not in headers:
        reason = (
            "config.json is of another model than the weights, or some of their files are not there"
            if path.is_dir()
            else "the file is not what its header says, or not whole"
        )
        raise ModelError(f"{path}: tensor {tensor.name!r} is missing: {reason}; download the model again")
    expected = weight.shape[::-1] if tensor.is_transposed else weight.shape
    if tensor.is_stacked:
        num_shares = tensor.share[1]
        expected = (num_parts // num_shares, num_shares * weight.shape[0], weight.shape[1])
    if headers[tensor.name].shape != expected:
        raise ModelError(
            f"{path}: tensor {tensor.name!r} has shape {list(headers[tensor.name].shape)};"
            f" its configuration says {list(expected)}"
        )


def _rows(weight: Weight, tensor: StoredTensor) -> range | None:
    """Which rows of a stacked tensor the weight is."""
    if not tensor.is_stacked:
        return None
    which, num_shares = tensor.share
    start = (tensor.expert * num_shares + which) * weight.shape[0]
    return range(start, start + weight.shape[0])


@dataclass(frozen=True, slots=True)
class TurnedHeader:
    """Of a weight that is turned, or cut out, when it is looked up."""

    type: str
    shape: tuple[int, ...]
    num_bytes: int


def _turned_header(header: TensorHeader, tensor: StoredTensor, num_parts: int) -> TensorHeader:
    if tensor.is_stacked:
        shape = (header.shape[1] // tensor.share[1], header.shape[2])
        return TurnedHeader(header.type, shape, header.num_bytes // num_parts)
    if tensor.is_transposed:
        return TurnedHeader(header.type, header.shape[::-1], header.num_bytes)
    if tensor.adds_one:
        return TurnedHeader("F32", header.shape, 4 * math.prod(header.shape))
    return header


def _turned(weight: StoredWeight, tensor: StoredTensor) -> StoredWeight:
    """The weight as programs read it. 1 is added in float32, as Hugging Face does."""
    if tensor.is_transposed:
        if weight.scales is not None:
            raise ModelError(f"tensor {tensor.name!r} lies [inputs, outputs], and is not read quantised")
        values = np.ascontiguousarray(weight.values.T)
        return StoredWeight(weight.format, values.shape, values)
    if tensor.adds_one:
        return StoredWeight("f32", weight.shape, weight.float32() + np.float32(1))
    return weight
