"""The table, the section and the JSON of `legato bench serve`."""

import json

from legato.bench.serving import Figures, WorkResult
from legato.bench.serving_report import OwnServer, ServingReport
from legato.bench.works import WORKS


def figures(wall_s: float, itl_s: float | None = 0.01) -> Figures:
    return Figures(
        wall_s=wall_s,
        output_tokens_per_s=50 / wall_s,
        prompt_tokens_per_s=8 / wall_s,
        ttft_s=0.1,
        ttft_max_s=0.2,
        itl_s=itl_s,
        itl_p99_s=itl_s,
    )


RESULTS = [
    WorkResult(WORKS["W1_1"], "legato", [figures(1.0), figures(4.0), figures(2.0)], [1.5, 2.0, 1.25]),
    WorkResult(WORKS["W1_1"], "http://b", [figures(3.0, None)], []),
]
REPORT = ServingReport(RESULTS, OwnServer(1.234, 400_000_000), model="m", command="legato bench serve m")


def test_table_has_medians_ranges_and_the_ratio_of_the_first() -> None:
    head, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in REPORT.text().splitlines()[:4]
    ]
    assert head == [
        "work", "server", "wall s", "output tokens/s", "prompt tokens/s", "TTFT ms", "TTFT max", "ITL ms",
        "ITL p99", "ratio",
    ]  # fmt: skip
    assert rows == [
        [
            "W1_1", "legato", "2.00 (1.00-4.00)", "25.0 (12.5-50.0)", "4 (2-8)", "100 (100-100)",
            "200 (200-200)", "10.00 (10.00-10.00)", "10.0 (10.0-10.0)", "1.50 (1.25-2.00)",
        ],
        ["W1_1", "http://b", "3.00", "16.7", "3", "100", "200", "-", "-", "-"],
    ]  # fmt: skip


def test_server_that_was_started_tells_its_start_and_its_memory() -> None:
    assert REPORT.text().endswith(
        "legato was ready 1.23 s after its start; its processes took 400 MB at most."
    )
    assert OwnServer(1.234, None).sentence() == "legato was ready 1.23 s after its start."


def test_section_says_what_was_measured_and_how_to_make_it_again() -> None:
    section = REPORT.section()
    assert REPORT.text() in section
    assert "- *W1_1*: 1 prompt of 5 to 8 tokens, 50 new tokens each\n" in section
    assert "\n    legato bench serve m\n" in section


def test_json_has_every_repetition() -> None:
    written = json.loads(json.dumps(REPORT.as_json()))
    assert written["own_server"] == {"start_s": 1.234, "peak_rss_bytes": 400_000_000}
    assert [each["wall_s"] for each in written["results"][0]["repetitions"]] == [1.0, 4.0, 2.0]
    assert written["results"][0]["ratios"] == [1.5, 2.0, 1.25]
