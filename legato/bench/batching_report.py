"""The figures of `legato bench batching` as text."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from legato import __version__
from legato.bench.batching import Comparison, predict_static_s
from legato.core.config import STATIC_ROUND

MIN_WIDTH = 3  # of a column in Markdown
HEADER = (
    "N",
    "static s",
    "continuous s",
    "static req/s",
    "continuous req/s",
    "ratio",
    "rounds",
    f"ceil(N/{STATIC_ROUND}) x round s",
)


def batching_table(comparisons: Sequence[Comparison]) -> str:
    """A table that reads as it is, and as Markdown. Without a measured full round there is no prediction."""
    round_s = next((each.static.seconds for each in comparisons if each.num_prompts == STATIC_ROUND), None)
    rows = [HEADER, *(_row(each, round_s) for each in comparisons)]
    widths = [max(MIN_WIDTH, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = " | ".join("-" * (width - 1) + ":" for width in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def batching_page(comparisons: Sequence[Comparison], *, model: str, command: str) -> str:
    """The table with what one needs to read it and to make it again."""
    return f"""# Batching: static rounds and continuous

One `POST /generate` with N prompts of mixed lengths to a server with `--batching static` (rounds of \
{STATIC_ROUND}) and to one with `--batching continuous`. Both gave the same texts. *ratio*: how many times \
faster continuous was. The last column is what the rounds should take if each took as long as the measured \
round of {STATIC_ROUND}.

{batching_table(comparisons)}

Model `{model}`; {describe_machine()}. Made by

    {command}
"""


def describe_machine() -> str:
    return f"{_cpu_name()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, legato {__version__}"


def _row(comparison: Comparison, round_s: float | None) -> tuple[str, ...]:
    num, static, continuous = comparison.num_prompts, comparison.static, comparison.continuous
    return (
        str(num),
        f"{static.seconds:.2f}",
        f"{continuous.seconds:.2f}",
        f"{num / static.seconds:.2f}",
        f"{num / continuous.seconds:.2f}",
        f"{comparison.ratio:.2f}",
        str(static.num_rounds),
        "-" if round_s is None else f"{predict_static_s(num, round_s):.2f}",
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
