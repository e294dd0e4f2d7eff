"""The matrix products of a model's step, by the native library, by numpy and by torch."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from legato.backends.stored_weight import GROUP_LEN, to_bfloat16
from legato.cli.bench.kernels.ceilings import Cost
from legato.cli.bench.kernels.tapes import random_rows, recorded, replay, rows_step, source
from legato.core.errors import ConfigError
from legato.modelfiles.model_config import ModelConfig

if TYPE_CHECKING:
    from legato.kernels._native import Device, PackedWeight, Tape, WeightFormat

WEIGHT_BITS: "dict[WeightFormat, float]" = {"f32": 32, "bf16": 16, "q4": 5, "q8": 8.5, "i8": 8}


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the model, `count` times with weights [outputs, inputs] of its own."""

    name: str
    outputs: int
    inputs: int
    count: int

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


def products_of(config: ModelConfig, num_layers: int) -> tuple[Product, ...]:
    """In the order of a layer; the head comes last."""
    q_width = config.num_heads * config.head_dim
    qkv_width = q_width + 2 * config.num_kv_heads * config.head_dim
    hidden, wide = config.hidden_size, config.intermediate_size
    return (
        Product("q, k, v", qkv_width, hidden, num_layers),
        Product("attention out", hidden, q_width, num_layers),
        Product("gate, up", 2 * wide, hidden, num_layers),
        Product("down", hidden, wide, num_layers),
        Product("head", config.vocab_size, hidden, 1),
    )


class NativeProducts:
    """Tapes of the native library. Each product reads rows of its own, as in a model: they are quantised anew."""

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
        arrays = _weight_arrays(product, self.format)
        weights = [self._device.pack(self.format, *arrays) for _ in range(product.count)]

        def record(tape: "Tape") -> int:
            return [tape.linear(tape.embedding(rows), weight) for weight in weights][-1]

        return recorded(self._device, max_rows, record)


def _weight_arrays(product: Product, weight_format: "WeightFormat") -> tuple[Any, ...]:
    """What Device.pack takes: values, and scales and minimums where the format has them."""
    shape = (product.outputs, product.inputs)
    if weight_format == "f32":
        return (random_rows(*shape),)
    if weight_format == "bf16":
        return (to_bfloat16(random_rows(*shape)),)
    if product.inputs % GROUP_LEN:
        raise ConfigError(
            f"--formats {weight_format}: the {product.inputs} inputs of {product.name} are no multiple of {GROUP_LEN}"
        )
    rng = np.random.default_rng(0)
    groups = np.full((product.outputs, product.inputs // GROUP_LEN), 0.01, np.float32)
    if weight_format == "q4":
        return rng.integers(0, 256, (shape[0], shape[1] // 2), np.uint8), groups, -groups
    values = rng.integers(-127, 128, shape, np.int8)
    return values, groups if weight_format == "q8" else np.full(product.outputs, 0.01, np.float32)


class NumpyProducts:
    """numpy's products, which are BLAS's, in float32 with the threads that it chooses."""

    name = "numpy f32"
    format: "WeightFormat" = "f32"

    def __init__(self, products: tuple[Product, ...]) -> None:
        self.weights = {
            product: [random_rows(product.outputs, product.inputs) for _ in range(product.count)]
            for product in products
        }

    def run(self, product: Product, num_rows: int) -> None:
        x = random_rows(num_rows, product.inputs)
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
        self._weights = {
            product: [self._torch.from_numpy(weight).to(self._dtype) for weight in weights]
            for product, weights in numpy.weights.items()
        }

    def run(self, product: Product, num_rows: int) -> None:
        linear = self._torch.nn.functional.linear
        with self._torch.inference_mode():
            x = self._torch.from_numpy(random_rows(num_rows, product.inputs)).to(self._dtype)
            for weight in self._weights[product]:
                linear(x, weight)


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
