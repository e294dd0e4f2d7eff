"""Timing in turn: products of all contestants, and the operations beside them."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from legato.cli.bench.kernels.ceilings import Cost
from legato.cli.bench.kernels.operations import Operation
from legato.cli.bench.kernels.products import Contestant, Product
from legato.cli.bench.kernels.steps import WholeStep

QUIET_S = 0.02  # in which threads that another library left spinning go to sleep

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds of one operation, or of some in a row, in each repetition; `cost` is of the same."""

    name: str
    cost: Cost
    seconds: list[float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class ProductTimings:
    """What one contestant took for products with so many rows.

    each   the average of a product's own, for each product
    whole  all products of a step
    """

    contestant: str
    num_rows: int
    each: dict[Product, Timing] = field(default_factory=dict)

    @property
    def whole(self) -> Timing:
        """The products of all layers, and the head's."""
        costs = [timing.cost.times(product.count) for product, timing in self.each.items()]
        steps = zip(*(timing.seconds for timing in self.each.values()), strict=True)
        counts = [product.count for product in self.each]
        seconds = [sum(s * count for s, count in zip(step, counts, strict=True)) for step in steps]
        return Timing(self.contestant, sum(costs[1:], costs[0]), seconds)


def time_products(
    contestants: Sequence[Contestant],
    products: Sequence[Product],
    rows: Sequence[int],
    num_reps: int,
    report: Report,
) -> list[ProductTimings]:
    """Every contestant goes through all weights of the model in each repetition, so caches hold none of them.

    The contestants take turns: what else the machine does slows all alike.
    """
    timings = []
    for num_rows in rows:
        report(f"products with {num_rows} rows")
        of_rows = [ProductTimings(each.name, num_rows) for each in contestants]
        for contestant, found in zip(contestants, of_rows, strict=True):
            for product in products:
                cost = product.cost(num_rows, contestant.format)
                found.each[product] = Timing(product.name, cost, [])
        for _ in range(num_reps):
            for contestant, found in zip(contestants, of_rows, strict=True):
                time.sleep(QUIET_S)
                contestant.run(products[-1], num_rows)  # wakes its threads
                for product in products:
                    seconds = _time(partial(contestant.run, product, num_rows))
                    found.each[product].seconds.append(seconds / product.count)
        timings += of_rows
    return timings


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What a whole step with so many rows took."""

    contestant: str
    num_rows: int
    whole: Timing


def time_steps(
    steps: Sequence[WholeStep],
    products: tuple[Product, ...],
    rows: Sequence[int],
    num_reps: int,
    report: Report,
) -> list[StepTiming]:
    """The steps take turns, after one that warms up."""
    timings = []
    for num_rows in rows:
        report(f"whole steps of {num_rows} rows")
        seconds = [[_time(partial(each.run, num_rows)) for each in steps] for _ in range(num_reps + 1)]
        for each, own in zip(steps, zip(*seconds[1:], strict=True), strict=True):
            timing = Timing(each.name, each.cost(products, num_rows), list(own))
            timings.append(StepTiming(each.name, num_rows, timing))
    return timings


def time_operations(operations: Iterable[Operation], num_reps: int, report: Report) -> list[Timing]:
    timings = []
    for operation in operations:
        report(operation.name)
        seconds = []
        for _ in range(num_reps + 1):
            operation.prepare()
            seconds.append(_time(operation.run) / operation.count)
        timings.append(Timing(operation.name, operation.cost, seconds[1:]))  # the first warmed up
    return timings


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
