"""The figures of `legato bench kernels` as text and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legato.bench.page import describe_machine, markdown_table
from legato.cli.bench.kernels.ceilings import Ceilings
from legato.cli.bench.kernels.steps import MAX_DECODES
from legato.cli.bench.kernels.timing import ProductTimings, StepTiming, Timing

TITLE = "Kernels"
FLOAT_FORMATS = ("f32", "bf16")


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What was measured, of which model's shapes, by which command, on which instruction set."""

    ceilings: Ceilings
    products: Sequence[ProductTimings]
    steps: Sequence[StepTiming]
    operations: Sequence[Timing]
    model: str
    device: str
    command: str

    def text(self) -> str:
        """The ceilings, and tables: of a step's products, a whole step, one product, what is beside them."""
        return f"""Ceilings in this run: {self._ceilings()}.

All matrix products of a step, every one with M rows:

{self._whole(self.products)}

A whole step, M tokens of as many requests, or above {MAX_DECODES} of one prompt; the ceiling is that of its \
products:

{self._whole(self.steps)}

One product:

{self._each()}

Beside the products:

{self._operations()}"""

    def section(self) -> str:
        """The tables with what one needs to read them and to make them again."""
        return f"""Medians, each with the rate that binds it, bytes or operations, and the share of this \
machine's ceiling: the time that reading its bytes at the measured bandwidth, or its multiply-adds at the \
measured rate, would take at least, by the time that it took. All was measured in one run with all threads, \
the contestants in turn. Each goes through the weights of the whole model in every repetition, so they come \
from memory, as in serving; rows and logits may stay in caches, which is how a share gets above 100 %. A \
multiply-add counts as two operations; numpy and torch multiply with as many threads.

{self.text()}

Shapes of `{self.model}`; {self.device}; {describe_machine()}. Made by

    {self.command}
"""

    def as_json(self) -> dict[str, Any]:
        """Every repetition's seconds, with bytes and operations."""
        rows = [("", 0, timing) for timing in self.operations]
        rows += [(each.contestant, each.num_rows, each.whole) for each in self.steps]
        rows += [(each.contestant, each.num_rows, t) for each in self.products for t in each.each.values()]
        return {
            "model": self.model,
            "device": self.device,
            "command": self.command,
            "machine": describe_machine(),
            "ceilings": asdict(self.ceilings),
            "timings": [
                {"contestant": contestant, "rows": num, **asdict(timing), "share": self._share(timing)}
                for contestant, num, timing in rows
            ],
        }

    def _ceilings(self) -> str:
        rates = [f"{each} {_billions(rate)} {_unit(each)}" for each, rate in self.ceilings.op_rates.items()]
        return f"memory {_billions(self.ceilings.read_rate)} GB/s; {', '.join(rates)}"

    def _whole(self, timings: Sequence[ProductTimings] | Sequence[StepTiming]) -> str:
        rows = sorted({each.num_rows for each in timings})
        names = dict.fromkeys(each.contestant for each in timings)
        lines = [[name, *(self._cell(t.whole) for t in timings if t.contestant == name)] for name in names]
        return markdown_table([["", *(f"M = {num}" for num in rows)], *lines], num_left=1)

    def _each(self) -> str:
        names = dict.fromkeys(each.contestant for each in self.products)
        rows = sorted({each.num_rows for each in self.products})
        lines = []
        for product in self.products[0].each:
            for num in rows:
                cells = [self._cell(each.each[product]) for each in self.products if each.num_rows == num]
                lines.append([f"{product.name} [{product.outputs}, {product.inputs}]", str(num), *cells])
        return markdown_table([["product", "M", *names], *lines], num_left=1)

    def _operations(self) -> str:
        lines = [[each.name, self._cell(each)] for each in self.operations]
        return markdown_table([["operation", "time, rate, share"], *lines], num_left=1)

    def _cell(self, timing: Timing) -> str:
        seconds = timing.median_s
        shown = f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
        cost = timing.cost
        if self.ceilings.is_memory_bound(cost):
            rate = f"{_billions(cost.num_bytes / seconds)} GB/s"
        else:
            rate = f"{_billions(cost.num_ops / seconds)} {_unit(cost.format)}"
        return f"{shown}, {rate}, {self._share(timing):.0%}"

    def _share(self, timing: Timing) -> float:
        return self.ceilings.least_s(timing.cost) / timing.median_s


def _billions(number: float) -> str:
    return f"{number / 1e9:.0f}" if number >= 100e9 else f"{number / 1e9:.1f}"


def _unit(weight_format: str) -> str:
    return "GFLOP/s" if weight_format in FLOAT_FORMATS else "GOP/s"
