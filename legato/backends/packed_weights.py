"""All that a program reads, as the kernels read it: packed from a model's weights, or mapped from a file."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from legato.backends.packed_file import VECTOR, PackedArray, UnusableError
from legato.program.ops import Program, Weight, products_of, weights_of

if TYPE_CHECKING:
    from legato.kernels._native import Device, PackedWeight, WeightFormat

Matrix = tuple[Weight, ...]  # weights of one product, stacked

FORM = 1  # raise it when other bytes are packed of the same files: rows in another order, rounded otherwise


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Matrices in panels, and vectors in float32.

    matrices  of a product whose weights are of several formats: one for each run of the same
    """

    matrices: Mapping[Matrix, "PackedWeight"]
    vectors: Mapping[Weight, np.ndarray]

    def sides(self, weights: Matrix) -> tuple["PackedWeight", ...]:
        """What a product with these weights reads, side by side."""
        return tuple(self.matrices[run] for run in _runs(weights, self.matrices.__contains__) or ())

    def arrays(self) -> dict[str, PackedArray]:
        """What is kept in a file."""
        arrays = {
            _name(key): PackedArray(matrix.format, (matrix.outputs, matrix.inputs), matrix.data)
            for key, matrix in self.matrices.items()
        }
        return arrays | {
            weight.name: PackedArray(VECTOR, vector.shape, vector.view(np.uint8))
            for weight, vector in self.vectors.items()
        }


def matrices_of(program: Program) -> list[Matrix]:
    """The weights of every product and embedding that is read, each once."""
    return list(dict.fromkeys(product for op in program.ops for product in products_of(op)))


def vectors_of(program: Program) -> list[Weight]:
    """Every other weight that is read: those of norms, and biases."""
    matrices = {weight for key in matrices_of(program) for weight in key}
    read = (weight for op in program.ops for weight in weights_of(op) if weight not in matrices)
    return list(dict.fromkeys(read))


def mapped_weights(device: "Device", program: Program, arrays: Mapping[str, PackedArray]) -> PackedWeights:
    """The program's weights from `PackedWeights.arrays` of the same device and model; nothing is copied.

    Raises UnusableError when they were packed for another program, or their bytes do not fit their shape.
    """

    def found(name: str, shape: tuple[int, ...]) -> PackedArray:
        array = arrays.get(name)
        if array is None or array.shape != shape:
            raise UnusableError(f"it holds no {name} of shape {list(shape)}")
        return array

    def matrix(key: Matrix) -> "PackedWeight":
        outputs, inputs = sum(weight.shape[0] for weight in key), key[0].shape[1]
        array = found(_name(key), (outputs, inputs))
        try:
            return device.packed(cast("WeightFormat", array.format), outputs, inputs, array.data)
        except ValueError as error:
            raise UnusableError(f"its {_name(key)} cannot be used: {error}") from error

    def vector(weight: Weight) -> np.ndarray:
        data = found(weight.name, weight.shape).data
        if data.nbytes != 4 * math.prod(weight.shape):
            raise UnusableError(f"its {weight.name} has {data.nbytes} bytes")
        return data.view(np.float32)

    def runs(key: Matrix) -> list[Matrix]:
        return _runs(key, lambda run: _name(run) in arrays) or [key]  # that it is missing is said later

    return PackedWeights(
        {run: matrix(run) for key in matrices_of(program) for run in runs(key)},
        {each: vector(each) for each in vectors_of(program)},
    )


def _runs(weights: Matrix, is_packed: Callable[[Matrix], bool]) -> list[Matrix] | None:
    """The weights in order, in the longest runs that are packed; None where one is in no such run."""
    runs: list[Matrix] = []
    while weights:
        run = next((weights[:end] for end in range(len(weights), 0, -1) if is_packed(weights[:end])), None)
        if run is None:
            return None
        runs.append(run)
        weights = weights[len(run) :]
    return runs


def _name(key: Matrix) -> str:
    return "+".join(weight.name for weight in key)
