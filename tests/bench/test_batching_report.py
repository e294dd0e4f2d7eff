"""The table of `legato bench batching`."""

from legato.bench.batching import Comparison, Measurement
from legato.bench.batching_report import batching_section, batching_table


def comparison(num: int, static_s: float, continuous_s: float, rounds: int) -> Comparison:
    return Comparison(num, Measurement(static_s, rounds, ()), Measurement(continuous_s, 0, ()))


COMPARISONS = [comparison(1, 0.5, 0.5, 1), comparison(4, 2.0, 1.6, 1), comparison(16, 8.4, 4.2, 4)]


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_table_has_seconds_rates_ratio_rounds_and_prediction() -> None:
    head, _, *rows = cells(batching_table(COMPARISONS))
    assert head == [
        "N",
        "static s",
        "continuous s",
        "static req/s",
        "continuous req/s",
        "ratio",
        "rounds",
        "ceil(N/4) x round s",
    ]
    assert rows == [
        ["1", "0.50", "0.50", "2.00", "2.00", "1.00", "1", "2.00"],
        ["4", "2.00", "1.60", "2.00", "2.50", "1.25", "1", "2.00"],
        ["16", "8.40", "4.20", "1.90", "3.81", "2.00", "4", "8.00"],
    ]


def test_nothing_is_predicted_without_a_measured_round() -> None:
    assert cells(batching_table(COMPARISONS[2:]))[2][-1] == "-"


def test_section_tells_how_to_make_it_again() -> None:
    section = batching_section(COMPARISONS, model="m", command="legato bench batching --model m")
    assert batching_table(COMPARISONS) in section
    assert "\n    legato bench batching --model m\n" in section
