"""The tables of `legato bench kernels`: which rate binds, which share of it was reached."""

import json

from legato.cli.bench.kernels.ceilings import Ceilings, Cost
from legato.cli.bench.kernels.products import Product
from legato.cli.bench.kernels.report import KernelReport
from legato.cli.bench.kernels.timing import ProductTimings, StepTiming, Timing

CEILINGS = Ceilings(10e9, {"f32": 100e9, "q4": 400e9})
DOWN = Product("down", 64, 32, count=3)
HEAD = Product("head", 1000, 32, count=1)


def timings(contestant: str, num_rows: int, down_s: list[float], head_s: list[float]) -> ProductTimings:
    costs = (Cost(10e6, num_rows * 1e6, "f32"), Cost(20e6, num_rows * 2e6, "f32"))
    each = zip((DOWN, HEAD), costs, (down_s, head_s), strict=True)
    return ProductTimings(
        contestant, num_rows, {product: Timing(product.name, cost, s) for product, cost, s in each}
    )


REPORT = KernelReport(
    CEILINGS,
    [
        timings("a f32", 1, [2e-3, 1e-3, 4e-3], [4e-3, 2e-3, 4e-3]),
        timings("b f32", 1, [4e-3] * 3, [4e-3] * 3),
        timings("a f32", 1000, [20e-3] * 3, [40e-3] * 3),
        timings("b f32", 1000, [10e-3] * 3, [20e-3] * 3),
    ],
    [StepTiming("a q4", 1, Timing("a q4", Cost(40e6, 1e6, "q4"), [5e-3]))],
    [Timing("norm", Cost(5000, 0, "f32"), [1e-6])],
    model="m",
    device="avx2, 2 threads",
    command="legato bench kernels",
)


def rows_after(title: str) -> list[list[str]]:
    lines = REPORT.text().partition(title)[2].strip().split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in [lines[0], *lines[2:]]]


def test_step_is_the_products_of_all_layers_and_its_median_that_of_whole_steps() -> None:
    assert REPORT.products[0].whole.seconds == [3 * 2e-3 + 4e-3, 3 * 1e-3 + 2e-3, 3 * 4e-3 + 4e-3]
    assert REPORT.products[0].whole.cost == Cost(50e6, 5e6, "f32")
    assert rows_after("with M rows:") == [
        ["", "M = 1", "M = 1000"],
        ["a f32", "10.00 ms, 5.0 GB/s, 50%", "100.00 ms, 50.0 GFLOP/s, 50%"],
        ["b f32", "16.00 ms, 3.1 GB/s, 31%", "50.00 ms, 100 GFLOP/s, 100%"],
    ]


def test_whole_step_is_held_against_its_products() -> None:
    assert rows_after("that of its products:") == [["", "M = 1"], ["a q4", "5.00 ms, 8.0 GB/s, 80%"]]


def test_product_shows_the_rate_that_binds_it() -> None:
    assert rows_after("One product:") == [
        ["product", "M", "a f32", "b f32"],
        ["down [64, 32]", "1", "2.00 ms, 5.0 GB/s, 50%", "4.00 ms, 2.5 GB/s, 25%"],
        ["down [64, 32]", "1000", "20.00 ms, 50.0 GFLOP/s, 50%", "10.00 ms, 100 GFLOP/s, 100%"],
        ["head [1000, 32]", "1", "4.00 ms, 5.0 GB/s, 50%", "4.00 ms, 5.0 GB/s, 50%"],
        ["head [1000, 32]", "1000", "40.00 ms, 50.0 GFLOP/s, 50%", "20.00 ms, 100 GFLOP/s, 100%"],
    ]


def test_operations_beside_the_products_have_a_line_each() -> None:
    assert rows_after("Beside the products:") == [
        ["operation", "time, rate, share"],
        ["norm", "1.0 µs, 5.0 GB/s, 50%"],
    ]


def test_ceilings_and_command_are_told() -> None:
    assert "Ceilings in this run: memory 10.0 GB/s; f32 100 GFLOP/s, q4 400 GOP/s.\n" in REPORT.section()
    assert "`m`; avx2, 2 threads; " in REPORT.section()
    assert "\n    legato bench kernels\n" in REPORT.section()


def test_json_has_every_repetition() -> None:
    written = json.loads(json.dumps(REPORT.as_json()))
    assert [each["name"] for each in written["timings"]] == ["norm", "a q4", *["down", "head"] * 4]
    assert written["timings"][2]["seconds"] == [2e-3, 1e-3, 4e-3]
    assert written["timings"][2]["share"] == 0.5
