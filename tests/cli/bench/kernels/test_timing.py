"""Whose turn it is, and what a repetition is divided by."""

from legato.cli.bench.kernels.ceilings import Cost
from legato.cli.bench.kernels.operations import Operation
from legato.cli.bench.kernels.products import Product
from legato.cli.bench.kernels.timing import time_operations, time_products

PRODUCTS = [Product("down", 64, 32, count=2), Product("head", 100, 32, count=1)]


class FakeContestant:
    """Writes down what it is asked for."""

    format = "q8"

    def __init__(self, name: str, log: list[tuple[str, str, int]]) -> None:
        self.name = name
        self._log = log

    def run(self, product: Product, num_rows: int) -> None:
        self._log.append((self.name, product.name, num_rows))


def test_contestants_go_through_the_whole_model_in_turn() -> None:
    log: list[tuple[str, str, int]] = []
    contestants = [FakeContestant("a", log), FakeContestant("b", log)]
    timings = time_products(contestants, PRODUCTS, [1, 8], num_reps=2, report=lambda _: None)
    turn = ["head", "down", "head"]  # the first wakes the threads
    assert log == [
        (name, product, rows) for rows in (1, 8) for _ in range(2) for name in "ab" for product in turn
    ]
    assert [(each.contestant, each.num_rows) for each in timings] == [("a", 1), ("b", 1), ("a", 8), ("b", 8)]
    assert [len(each.seconds) for each in timings[0].each.values()] == [2, 2]
    assert timings[2].each[PRODUCTS[0]].cost == Cost(64 * 32 * 8.5 / 8, 2 * 8 * 64 * 32, "q8")


def test_first_run_of_an_operation_warms_up_and_each_is_prepared() -> None:
    log: list[str] = []
    operation = Operation(
        "sample", 1, Cost(1, 0, "f32"), lambda: log.append("run"), lambda: log.append("prepare")
    )
    [timing] = time_operations([operation], num_reps=3, report=lambda _: None)
    assert log == ["prepare", "run"] * 4
    assert len(timing.seconds) == 3
