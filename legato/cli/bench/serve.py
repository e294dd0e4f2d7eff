"""`legato bench serve`: works sent to a server of our own, to one that runs, or to two in turn."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from legato.cli.local_model import open_engine
from legato.cli.options import (
    add_model,
    add_settings,
    as_flags,
    flag_of,
    given_settings,
    resolve,
    split_list,
)
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError
from legato.observability.progress import Progress

if TYPE_CHECKING:
    from legato.bench.endpoint import Endpoint
    from legato.bench.server_process import ServerProcess
    from legato.bench.serving_report import ServingReport
    from legato.bench.works import Work

_LEFT_OUT = frozenset({"served_model_name", "seed"})  # here --seed is that of the prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--url",
        help="measure the server that runs there, instead of starting one; MODEL or --vocab goes with it",
    )
    parser.add_argument(
        "--in-process", action="store_true", help="measure an engine without HTTP, as a library is used"
    )
    parser.add_argument("--against", metavar="URL", help="measure this OpenAI server too, in turn")
    parser.add_argument(
        "--against-model", metavar="NAME", help="its model (default: the first one that it lists)"
    )
    parser.add_argument("--works", metavar="W1_1,W2,...", help="which works (default: all)")
    parser.add_argument(
        "--reps", type=int, default=3, help="repetitions that count (default: %(default)s)", metavar="N"
    )
    parser.add_argument(
        "--seed",
        dest="prompt_seed",
        type=int,
        default=0,
        metavar="SEED",
        help="of the prompts (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab", type=int, metavar="N", help="prompts hold ids below N (default: the model's vocabulary)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="put a section with the table into it")
    parser.add_argument("--title", help="of that section, to keep several apart (default: Serving)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every repetition's figures into it")
    add_settings(parser, EngineConfig, "engine that is started", leave_out=_LEFT_OUT)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises BenchError naming server and work when an answer fails or is too short."""
    _check(arguments)
    works, config = _works(arguments.works), resolve(EngineConfig, arguments).value
    from legato.bench.serving import Repeats, measure_works
    from legato.bench.serving_report import OwnServer, ServingReport

    repeats = Repeats(arguments.reps, arguments.prompt_seed, arguments.vocab or _vocab_size(config))
    with Progress("bench serve") as progress:
        progress.show(0.0, "the start")
        with _opened(arguments, config) as (endpoints, server):
            results = measure_works(endpoints, works, repeats, progress.show)
            own = None if server is None else OwnServer(server.start_s, server.peak_rss_bytes())
    report = ServingReport(results, own, model=config.model, command=arguments.command_line)
    print(report.text())
    _write(arguments, report)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for flags that do not fit each other."""
    from legato.bench.http_endpoint import read_url

    for flag, number in (("--reps", arguments.reps), ("--vocab", arguments.vocab)):
        if number is not None and number < 1:
            raise ConfigError(f"{flag} {number}: must be at least 1")
    for flag, url in (("--url", arguments.url), ("--against", arguments.against)):
        if url is not None:
            with _naming(flag):
                read_url(url)
    if arguments.in_process and (url := arguments.url or arguments.against):
        raise ConfigError(f"--in-process and {url}: an engine without HTTP and a server do not compare")
    if arguments.against_model and not arguments.against:
        raise ConfigError(f"--against-model {arguments.against_model}: give --against URL too")
    given = given_settings(EngineConfig, arguments)
    if arguments.url and (others := given.keys() - {"model"}):
        raise ConfigError(f"{flag_of(min(others))} is for a server that is started, not for {arguments.url}")
    if arguments.url and not arguments.vocab and not given:
        raise ConfigError(
            f"--url {arguments.url}: prompts are token ids that the server must know; give its MODEL,"
            " or --vocab N for ids below N"
        )


@contextmanager
def _naming(flag: str) -> Iterator[None]:
    """Begin the text of a ConfigError about a URL with its flag."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{flag} {error}") from error


def _works(text: str | None) -> "list[Work]":
    from legato.bench.works import WORKS

    names = list(WORKS) if text is None else split_list(text)
    if not names or not WORKS.keys() >= set(names):
        raise ConfigError(f"--works {text}: expected some of {','.join(WORKS)}")
    return [WORKS[name] for name in names]


def _vocab_size(config: EngineConfig) -> int:
    from legato.modelfiles.catalog import resolve as resolve_model
    from legato.modelfiles.model_config import read_model_config

    return read_model_config(resolve_model(config.model, revision=config.revision).path).vocab_size


@contextmanager
def _opened(
    arguments: argparse.Namespace, config: EngineConfig
) -> "Iterator[tuple[list[Endpoint], ServerProcess | None]]":
    """What is measured, and the server that was started for it, if one was."""
    from legato.bench.endpoint import InProcessEndpoint
    from legato.bench.http_endpoint import open_endpoint
    from legato.bench.server_process import ServerProcess

    if arguments.in_process:
        with open_engine(config) as opened:
            yield [InProcessEndpoint(opened.llm)], None
            return
    others = []
    if arguments.against:
        with _naming("--against"):
            others = [open_endpoint(arguments.against, arguments.against, arguments.against_model)]
    if arguments.url:
        with _naming("--url"):
            measured = open_endpoint(arguments.url, arguments.url)
        yield [measured, *others], None
        return
    with ServerProcess("legato", as_flags(given_settings(EngineConfig, arguments))) as server:
        yield [open_endpoint("legato", server.url), *others], server


def _write(arguments: argparse.Namespace, report: "ServingReport") -> None:
    from legato.bench.page import write_section
    from legato.bench.serving_report import TITLE

    if arguments.output is not None:
        write_section(arguments.output, arguments.title or TITLE, report.section())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
