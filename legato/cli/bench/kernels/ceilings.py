"""What this machine can do at most, measured in the run that is held against it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from legato.cli.bench.kernels.command import FORMATS

if TYPE_CHECKING:
    from legato.kernels._native import Device, WeightFormat

NUM_TRIES = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """With all threads.

    read_rate  bytes a second, of an array that no cache holds
    op_rates   weight format -> operations a second in registers, two for each multiply-add
    """

    read_rate: float
    op_rates: "Mapping[WeightFormat, float]"

    def least_s(self, cost: "Cost") -> float:
        """Seconds that the cost takes at the ceiling which binds it."""
        return max(cost.num_bytes / self.read_rate, cost.num_ops / self.op_rates[cost.format])

    def is_memory_bound(self, cost: "Cost") -> bool:
        return cost.num_bytes / self.read_rate >= cost.num_ops / self.op_rates[cost.format]


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation must do at least: bytes from memory, operations, and of which kind these are."""

    num_bytes: float
    num_ops: float
    format: "WeightFormat"

    def times(self, count: int) -> "Cost":
        return Cost(self.num_bytes * count, self.num_ops * count, self.format)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.num_bytes + other.num_bytes, self.num_ops + other.num_ops, self.format)


def measure_ceilings(device: "Device", *, read_bytes: int, num_rounds: int) -> Ceilings:
    """The best of some tries each: what else the machine does can only slow them."""
    data = np.ones(read_bytes // 4, np.float32)
    read_s, _ = _best(partial(device.probe_read, data))
    op_rates: dict[WeightFormat, float] = {}
    for each in FORMATS:
        seconds, num = _best(partial(device.probe_multiply, each, num_rounds))
        op_rates[each] = 2 * num / seconds
    return Ceilings(data.nbytes / read_s, op_rates)


def _best(probe: Callable[[], float]) -> tuple[float, float]:
    """The least seconds, and what the probe gave."""
    seconds = []
    for _ in range(NUM_TRIES):
        started = time.perf_counter()
        given = probe()
        seconds.append(time.perf_counter() - started)
    return min(seconds), given
