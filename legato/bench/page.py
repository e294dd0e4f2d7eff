"""Tables, and the page that figures are written to: a section a benchmark, each replaced by itself."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from legato import __version__

MIN_WIDTH = 3  # of a column in Markdown
TITLE = "# Performance\n"


def markdown_table(rows: Sequence[Sequence[str]], *, num_left: int = 0) -> str:
    """A table that reads as it is, and as Markdown; the first row is the head.

    num_left  columns, from the first on, that are aligned left
    """
    widths = [max(MIN_WIDTH, *map(len, column)) for column in zip(*rows, strict=True)]
    rules = [":" + "-" * (w - 1) if i < num_left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = [
        " | ".join(
            cell.ljust(width) if i < num_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join(rules), *lines[1:]])


def describe_machine() -> str:
    return f"{_cpu_name()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, legato {__version__}"


def write_section(page: Path, title: str, body: str) -> None:
    """Put a section into the page in place of the one with its title, else at the end; no other changes."""
    text = page.read_text(encoding="utf-8") if page.exists() else TITLE
    section = f"## {title}\n\n{body.strip()}\n"
    old = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if old.search(text):
        text = old.sub(lambda _: section + "\n", text, count=1)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
