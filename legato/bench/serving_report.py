"""The figures of `legato bench serve` as text and as JSON."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legato.bench.page import describe_machine, markdown_table
from legato.bench.serving import Figures, WorkResult

TITLE = "Serving"
ABSENT = "-"

Column = tuple[str, Callable[[Figures], float | None], str]  # head, value, format

COLUMNS: tuple[Column, ...] = (
    ("wall s", lambda each: each.wall_s, ".2f"),
    ("output tokens/s", lambda each: each.output_tokens_per_s, ".1f"),
    ("prompt tokens/s", lambda each: each.prompt_tokens_per_s, ".0f"),
    ("TTFT ms", lambda each: _ms(each.ttft_s), ".0f"),
    ("TTFT max", lambda each: _ms(each.ttft_max_s), ".0f"),
    ("ITL ms", lambda each: _ms(each.itl_s), ".2f"),
    ("ITL p99", lambda each: _ms(each.itl_p99_s), ".1f"),
)


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server that was started to be measured: seconds until it was ready, its memory at most, if known."""

    start_s: float
    peak_rss_bytes: int | None

    def sentence(self) -> str:
        memory = ""
        if self.peak_rss_bytes is not None:
            memory = f"; its processes took {self.peak_rss_bytes / 1e6:.0f} MB at most"
        return f"legato was ready {self.start_s:.2f} s after its start{memory}."


@dataclass(frozen=True, slots=True)
class ServingReport:
    """What was measured, of which model, by which command; `own` when a server was started for it."""

    results: Sequence[WorkResult]
    own: OwnServer | None
    model: str
    command: str

    def text(self) -> str:
        """A row for each work and endpoint: the median of the repetitions, and (least-most)."""
        head = ("work", "server", *(name for name, _, _ in COLUMNS), "ratio")
        table = markdown_table([head, *map(_row, self.results)], num_left=2)
        return table if self.own is None else f"{table}\n\n{self.own.sentence()}"

    def section(self) -> str:
        """The table with what one needs to read it and to make it again."""
        works = {each.work.name: each.work.meaning for each in self.results}
        meanings = "\n".join(f"- *{name}*: {meaning}" for name, meaning in works.items())
        return f"""Streamed `/v1/completions` of prompts of random token ids, temperature 0, each answer as \
long as asked for; the requests of a work are sent at once. Each figure is the median of the repetitions and \
(least-most), after one that warmed up; every repetition has prompts of its own. *TTFT* is the time to the \
first token of an answer, median and longest; *ITL* the time between tokens, median and 99th percentile; \
*ratio*, with two servers measured in turn, how many times as fast the first one was, pair by pair.

{meanings}

{self.text()}

Model `{self.model}`; {describe_machine()}. Made by

    {self.command}
"""

    def as_json(self) -> dict[str, Any]:
        """Every repetition's figures, in seconds and tokens per second."""
        return {
            "model": self.model,
            "command": self.command,
            "machine": describe_machine(),
            "own_server": None if self.own is None else asdict(self.own),
            "results": [
                {
                    "work": each.work.name,
                    "server": each.endpoint_name,
                    "repetitions": [asdict(figures) for figures in each.repetitions],
                    "ratios": each.ratios,
                }
                for each in self.results
            ],
        }


def _row(result: WorkResult) -> tuple[str, ...]:
    cells = [_cell(map(value, result.repetitions), form) for _, value, form in COLUMNS]
    return (result.work.name, result.endpoint_name, *cells, _cell(result.ratios, ".2f"))


def _cell(values: Iterable[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ABSENT
    median, least, most = (format(each, form) for each in (statistics.median(known), min(known), max(known)))
    return median if len(known) == 1 else f"{median} ({least}-{most})"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
