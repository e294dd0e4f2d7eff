"""`legato bench`: the benchmarks, each a command of its own."""

import argparse

from legato.cli import bench_batching


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", required=True)
    batching = benchmarks.add_parser("batching", help="static rounds against continuous batching")
    bench_batching.add_arguments(batching)
