"""`legato bench`: the benchmarks, each a command of its own."""

import argparse

from legato.cli.bench import batching, serve
from legato.cli.bench.kernels import command as kernels

BENCHMARKS = (
    ("batching", "static rounds against continuous batching", batching),
    ("serve", "a server under load: this one, one that runs, or two in turn", serve),
    (
        "kernels",
        "each operation of the native library against this machine's ceilings, numpy and torch",
        kernels,
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", required=True)
    for name, text, module in BENCHMARKS:
        module.add_arguments(benchmarks.add_parser(name, help=text, description=text))
