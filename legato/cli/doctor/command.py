"""`legato doctor`: plain lines about this installation, this machine and the settings of its environment.

It imports the standard library alone, the kernels aside: it must also run where something else is missing.
"""

import argparse
from collections.abc import Iterator

from legato.cli.doctor import installation, machine, variables

Line = tuple[str, str]  # what it is about, and what there is to say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print what is found, faults among it; 0, since telling of them is the task."""
    rows = list(lines())
    width = max(len(about) for about, _ in rows)
    for about, text in rows:
        print(f"{about:{width}}  {text}")
    return 0


def lines() -> Iterator[Line]:
    yield from installation.lines()
    yield from machine.lines()
    yield from variables.lines()
