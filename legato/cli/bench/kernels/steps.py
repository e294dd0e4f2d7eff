"""Whole steps of a model with random weights, as the cpu backend compiles it."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from legato.backends.backend import ForwardInputs, KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.stored_weight import StoredWeight
from legato.cli.bench.kernels.ceilings import Cost
from legato.cli.bench.kernels.products import Product, weight_arrays
from legato.cli.bench.kernels.tapes import step
from legato.program.ops import Program, Weight, weights_of

if TYPE_CHECKING:
    from legato.kernels._native import Device, WeightFormat

PAGE_SIZE = 16
MAX_DECODES = 64  # rows up to so many are a token each of as many requests; more are a chunk of one prompt
FORMATS = ("f32", "bf16", "q4", "q8")  # in which models are stored


class WholeStep:
    """Steps with weights of one format; K/V in bfloat16 but beside float32 weights."""

    def __init__(
        self,
        device: "Device",
        program: Program,
        weight_format: "WeightFormat",
        max_rows: int,
    ) -> None:
        self.name = f"legato {weight_format}"
        self.format = weight_format
        is_exact = weight_format == "f32"
        options = CpuOptions(
            float_weights="f32" if is_exact else "bf16",
            is_quantized=True,
            max_tokens=max_rows,
            max_samples=min(max_rows, MAX_DECODES),
        )
        num_pages = max(min(max_rows, MAX_DECODES), -(-max_rows // PAGE_SIZE))
        kv = KVLayout.of(program, num_pages, PAGE_SIZE, "float32" if is_exact else "bfloat16")
        weights = {each.name: each for op in program.ops for each in weights_of(op)}
        stored = {name: _random_weight(each, weight_format) for name, each in weights.items()}
        self._program = CpuBackend(device, options).compile(program, stored, kv)

    def run(self, num_rows: int) -> None:
        self._program.forward(_decodes(num_rows) if num_rows <= MAX_DECODES else _chunk(num_rows))

    def cost(self, products: tuple[Product, ...], num_rows: int) -> Cost:
        """Of its products, the head's for rows that sample alone."""
        num_samples = num_rows if num_rows <= MAX_DECODES else 1
        rows = [num_samples if product.is_head else num_rows for product in products]
        costs = [p.cost(num, self.format).times(p.count) for p, num in zip(products, rows, strict=True)]
        return sum(costs[1:], costs[0])


def _random_weight(weight: Weight, weight_format: "WeightFormat") -> StoredWeight:
    if len(weight.shape) == 1:
        return StoredWeight("f32", weight.shape, np.ones(weight.shape, np.float32))
    assert weight_format != "i8"
    outputs, inputs = weight.shape
    return StoredWeight(weight_format, weight.shape, *weight_arrays(outputs, inputs, weight_format))


def _decodes(num_requests: int) -> ForwardInputs:
    """The last token of a page of each request."""
    pages = np.arange(num_requests, dtype=np.int32)[:, None]
    inputs = step(num_tokens=1, kv_lens=[PAGE_SIZE] * num_requests, page_table=pages)
    return replace(inputs, sample_rows=np.arange(num_requests, dtype=np.int32))


def _chunk(num_tokens: int) -> ForwardInputs:
    """The first tokens of a prompt."""
    pages = np.arange(-(-num_tokens // PAGE_SIZE), dtype=np.int32)[None]
    return step(num_tokens=num_tokens, kv_lens=[num_tokens], page_table=pages)
