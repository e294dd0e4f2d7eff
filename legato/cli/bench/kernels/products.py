"""The matrix products of a model's step, by the native library, by numpy and by torch."""

import importlib
import importlib.util
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from legato.backends.stored_weight import GROUP_LEN, to_bfloat16
from legato.cli.bench.kernels.ceilings import Cost
from legato.cli.bench.kernels.tapes import random_rows, recorded, replay, rows_step, source
from legato.core.errors import ConfigError
from legato.program.ops import Experts, Linear, Program

if TYPE_CHECKING:
    from legato.kernels._native import Device, Tape, WeightFormat

HEAD = "head"
WEIGHT_BITS: "dict[WeightFormat, float]" = {
    "f32": 32,
    "bf16": 16,
    "q4": 5,
    "q5": 6,
    "q6": 7,
    "q8": 8.5,
    "i8": 8,
}

GROUP_BYTES: "dict[WeightFormat, int]" = {"q4": 16, "q5": 20, "q6": 26}  # of values, packed


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the model, `count` times with weights [outputs, inputs] of its own."""

    name: str
    outputs: int
    inputs: int
    count: int

    @property
    def is_head(self) -> bool:
        """Whether its rows are those that sample."""
        return self.name == HEAD

    def cost(self, num_rows: int, weight_format: "WeightFormat") -> Cost:
        """Of one of them: its weights are read once, inputs and outputs stay in the caches."""
        size = self.outputs * self.inputs
        return Cost(size * WEIGHT_BITS[weight_format] / 8, 2 * num_rows * size, weight_format)


class Contestant(Protocol):
    """Something that computes products; `format` is that of its weights."""

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> "WeightFormat": ...

    def run(self, product: Product, num_rows: int) -> None:
        """All `count` products, one after the other."""
        ...


def products_of(program: Program) -> tuple[Product, ...]:
    """Every product of the program, those of all layers together. Raises ConfigError for experts."""
    if any(isinstance(op, Experts) for op in program.ops):
        raise ConfigError(
            "--model: its tokens go to experts of their own: measure it with `legato bench serve`"
        )
    linears = [op for op in program.ops if isinstance(op, Linear)]
    kinds = Counter((_name(op), sum(each.shape[0] for each in op.weights), op.x.width) for op in linears)
    return tuple(Product(*kind, count) for kind, count in kinds.items())


def _name(op: Linear) -> str:
    """q_proj + k_proj + v_proj; what stands in no layer is the head, whatever weights it shares."""
    names = [each.name for each in op.weights]
    return " + ".join(name.rpartition(".")[2] for name in names) if "layers." in names[0] else HEAD


class NativeProducts:
    """Tapes of the native library; each product reads rows of its own, so they are quantised anew for it."""

    def __init__(
        self,
        device: "Device",
        weight_format: "WeightFormat",
        products: tuple[Product, ...],
        max_rows: int,
    ) -> None:
        self.name = f"legato {weight_format}"
        self.format = weight_format
        self._device = device
        self._tapes = {product: self._tape(product, max_rows) for product in products}

    def run(self, product: Product, num_rows: int) -> None:
        replay(self._tapes[product], rows_step(num_rows))

    def _tape(self, product: Product, max_rows: int) -> "Tape":
        rows = source(self._device, product.inputs)
        arrays = weight_arrays(product.outputs, product.inputs, self.format)
        weights = [self._device.pack(self.format, *arrays) for _ in range(product.count)]

        def record(tape: "Tape") -> int:
            return [tape.linear(tape.embedding(rows), weight) for weight in weights][-1]

        return recorded(self._device, max_rows, record)


def weight_arrays(outputs: int, inputs: int, weight_format: "WeightFormat") -> tuple[Any, ...]:
    """What Device.pack takes: values, and and scales and minimums if there are such. Raises ConfigError."""
    if weight_format == "f32":
        return (random_rows(outputs, inputs),)
    if weight_format == "bf16":
        return (to_bfloat16(random_rows(outputs, inputs)),)
    if inputs % GROUP_LEN:
        raise ConfigError(
            f"--formats {weight_format}: a product has {inputs} inputs, no groups of {GROUP_LEN}"
        )
    rng = np.random.default_rng(0)
    groups = np.full((outputs, inputs // GROUP_LEN), 0.01, np.float32)
    if weight_format in GROUP_BYTES:
        values = rng.integers(0, 256, (outputs, inputs // GROUP_LEN * GROUP_BYTES[weight_format]), np.uint8)
        return (values, groups) if weight_format == "q6" else (values, groups, -groups)
    values = rng.integers(-127, 128, (outputs, inputs), np.int8)
    return values, groups if weight_format == "q8" else np.full(outputs, 0.01, np.float32)


@cache
def _inputs(num_rows: int, width: int) -> np.ndarray:
    return random_rows(num_rows, width)


class NumpyProducts:
    """numpy's products, which are BLAS's, in float32 with the threads that it chooses."""

    name = "numpy f32"
    format: "WeightFormat" = "f32"

    def __init__(self, products: tuple[Product, ...]) -> None:
        self.weights = {
            product: [random_rows(product.outputs, product.inputs).copy() for _ in range(product.count)]
            for product in products
        }

    def run(self, product: Product, num_rows: int) -> None:
        x = _inputs(num_rows, product.inputs)
        for weight in self.weights[product]:
            x @ weight.T


class TorchProducts:
    """torch's products, if it is installed: nothing of legato needs it."""

    def __init__(self, weight_format: "WeightFormat", numpy: NumpyProducts, num_threads: int) -> None:
        self.name = f"torch {weight_format}"
        self.format = weight_format
        self._torch: Any = importlib.import_module("torch")
        self._torch.set_num_threads(num_threads)
        self._dtype = {"f32": self._torch.float32, "bf16": self._torch.bfloat16}[weight_format]
        self._inputs: dict[tuple[int, int], Any] = {}
        self._weights = {
            product: [self._torch.from_numpy(weight).to(self._dtype) for weight in weights]
            for product, weights in numpy.weights.items()
        }

    def run(self, product: Product, num_rows: int) -> None:
        shape = (num_rows, product.inputs)
        if shape not in self._inputs:
            self._inputs[shape] = self._torch.from_numpy(_inputs(*shape)).to(self._dtype)
        x, linear = self._inputs[shape], self._torch.nn.functional.linear
        with self._torch.inference_mode():
            for weight in self._weights[product]:
                linear(x, weight)


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
