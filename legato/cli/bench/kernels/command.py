"""`legato bench kernels`: every operation of the native library on the shapes of a model."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from legato.cli.options import split_list
from legato.core.config import DEFAULT_MODEL
from legato.core.errors import ConfigError, ModelError
from legato.observability.progress import Progress

if TYPE_CHECKING:
    from legato.cli.bench.kernels.operations import Operation
    from legato.cli.bench.kernels.products import Contestant, Product
    from legato.cli.bench.kernels.report import KernelReport
    from legato.kernels._native import Device, WeightFormat
    from legato.models.family import Model

FORMATS: "tuple[WeightFormat, ...]" = ("f32", "bf16", "q4", "q5", "q6", "q8", "i8")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    rows         M of the products, tokens of the other operations
    attention    requests, tokens and positions of each case
    read_bytes   of the array whose reading is timed: many times what a cache holds
    num_rounds   of multiply-adds: some hundredths of a second
    """

    num_reps: int
    max_layers: int
    rows: tuple[int, ...]
    attention: tuple[tuple[int, int, int], ...]
    read_bytes: int
    num_rounds: int


WHOLE = Extent(
    num_reps=7,
    max_layers=1000,
    rows=(1, 4, 16, 64, 512),
    attention=((64, 1, 1), (64, 1, 64), (16, 1, 512), (4, 1, 2000), (1, 512, 512), (1, 512, 2000)),
    read_bytes=1 << 30,
    num_rounds=2_000_000,
)
QUICK = Extent(
    num_reps=2,
    max_layers=2,
    rows=(1, 16),
    attention=((4, 1, 1), (4, 1, 64), (1, 16, 64)),
    read_bytes=1 << 24,
    num_rounds=2000,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", "-m", default=DEFAULT_MODEL, help="whose shapes; weights are random (default: %(default)s)"
    )
    parser.add_argument(
        "--formats", default=",".join(FORMATS), help="of the weights (default: %(default)s)", metavar="A,B"
    )
    parser.add_argument("--threads", "-t", type=int, help="default: physical cores that may be used")
    parser.add_argument("--reps", type=int, help="repetitions, whose median counts", metavar="N")
    parser.add_argument(
        "--quick", action="store_true", help="two layers and a few cases: does it work at all?"
    )
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="numpy and torch too (default: yes)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="put a section with the tables into it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every repetition's figures into it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables. Raises ModelError where there are no kernels, ConfigError for wrong flags."""
    formats = [each for each in FORMATS if each in split_list(arguments.formats)]
    if len(formats) != len(split_list(arguments.formats)) or not formats:
        raise ConfigError(f"--formats {arguments.formats}: expected some of {','.join(FORMATS)}")
    for flag, number in (("--threads", arguments.threads), ("--reps", arguments.reps)):
        if number is not None and number < 1:
            raise ConfigError(f"{flag} {number}: must be at least 1")
    from legato.bench.page import write_section
    from legato.cli.bench.kernels.report import TITLE

    with Progress("bench kernels") as progress:
        report = _measure(arguments, formats, lambda note: progress.show(0.0, note))
    print(report.text())
    if arguments.output is not None:
        write_section(arguments.output, TITLE, report.section())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return 0


def _measure(
    arguments: argparse.Namespace, formats: "list[WeightFormat]", tell: Callable[[str], None]
) -> "KernelReport":
    from legato.cli.bench.kernels.ceilings import measure_ceilings
    from legato.cli.bench.kernels.products import products_of
    from legato.cli.bench.kernels.report import KernelReport
    from legato.cli.bench.kernels.steps import FORMATS as STORED_FORMATS
    from legato.cli.bench.kernels.steps import WholeStep
    from legato.cli.bench.kernels.timing import time_operations, time_products, time_steps

    extent = QUICK if arguments.quick else WHOLE
    device, model = _device(arguments.threads), _model(arguments.model, extent.max_layers)
    num_reps = arguments.reps or extent.num_reps
    tell("ceilings")
    ceilings = measure_ceilings(device, read_bytes=extent.read_bytes, num_rounds=extent.num_rounds)
    tell("operations")
    operations = time_operations(_operations(device, model, extent), num_reps, tell)
    tell("weights")
    products = products_of(model.program)
    stored = [each for each in formats if each in STORED_FORMATS]
    steps = [WholeStep(device, model.program, each, max(extent.rows)) for each in stored]
    step_timings = time_steps(steps, products, extent.rows, num_reps, tell)
    contestants = _contestants(device, formats, products, max(extent.rows), with_peers=arguments.peers)
    return KernelReport(
        ceilings,
        time_products(contestants, products, extent.rows, num_reps, tell),
        step_timings,
        operations,
        model=arguments.model,
        device=f"{device.isa}, {device.num_threads} threads",
        command=arguments.command_line,
    )


def _device(num_threads: int | None) -> "Device":
    from legato.kernels.library import NoKernels, open_device

    device = open_device(num_threads)
    if isinstance(device, NoKernels):
        raise ModelError(f"there is nothing to measure: {device.reason}")
    return device


def _model(model: str, max_layers: int) -> "Model":
    from legato.modelfiles.catalog import resolve
    from legato.modelfiles.model_config import read_model_config
    from legato.models.registry import build_model

    config = read_model_config(resolve(model, report=lambda line: print(line, file=sys.stderr)).path)
    settings = dict(config.settings)
    for name in {"num_hidden_layers", "n_layer"} & settings.keys():
        settings[name] = min(settings[name], max_layers)
    return build_model(replace(config, settings=settings))


def _operations(device: "Device", model: "Model", extent: Extent) -> Iterator["Operation"]:
    from legato.backends.backend import KVLayout
    from legato.cli.bench.kernels.operations import (
        AttentionCase,
        Widths,
        attention_operations,
        row_operations,
        sampler_operations,
    )

    cases = tuple(AttentionCase(*each) for each in extent.attention)
    num_layers = KVLayout.of(model.program, 1, 1).num_layers
    yield from row_operations(device, Widths.of(model.program), extent.rows, num_layers)
    yield from attention_operations(device, model.program, cases, num_layers, model.max_position)
    yield from sampler_operations(device, model.vocab_size, tuple(num for num in extent.rows if num <= 64))


def _contestants(
    device: "Device",
    formats: "list[WeightFormat]",
    products: "tuple[Product, ...]",
    max_rows: int,
    *,
    with_peers: bool,
) -> "list[Contestant]":
    from legato.cli.bench.kernels.products import NativeProducts, NumpyProducts, TorchProducts, has_torch

    contestants: list[Contestant] = [NativeProducts(device, each, products, max_rows) for each in formats]
    if with_peers:
        numpy = NumpyProducts(products)
        contestants.append(numpy)
        if has_torch():
            contestants += [TorchProducts(each, numpy, device.num_threads) for each in ("f32", "bf16")]
    return contestants
