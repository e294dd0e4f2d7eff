"""`legato batch`: every line of a file answered by the routes of the server, with no server."""

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from legato.cli.options import add_print_config, add_settings, config_table, resolve
from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError
from legato.observability.logs import set_up_logging
from legato.observability.progress import Progress

if TYPE_CHECKING:
    from legato.api.engine_service import EngineService
    from legato.cli.batch.output import Output
    from legato.cli.batch.tally import Tally

_OF_THE_NETWORK = frozenset(
    {
        *("host", "port", "api_key", "api_key_file", "max_requests_per_key", "requests_per_minute_per_key"),
        *("ssl_keyfile", "ssl_certfile", "allowed_origins", "allowed_hosts"),
        *("root_path", "vllm_url", "drain_timeout_s", "max_models_memory_bytes", "idle_unload_s"),
    }
)
_PER_PLACE = 2  # requests in flight for each that can run: whoever ends has a successor that waits
_DEFAULT_PLACES = 64
_REDRAW_S, _LOG_S = 0.2, 30.0  # between two looks at the progress, on a terminal and in a log
_MAX_TOLD = 50  # lines about lines; the output holds them all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("positional_input", nargs="?", metavar="INPUT", help="the same as --input-file")
    parser.add_argument(
        "-i", "--input-file", metavar="FILE", help="lines in OpenAI's batch format; - is standard input"
    )
    parser.add_argument(
        "-o",
        "--output-file",
        metavar="FILE",
        help="a row for each line, as they are answered; what it holds already is kept and not asked again;"
        " - is standard output",
    )
    parser.add_argument(
        "--max-in-flight",
        type=int,
        metavar="N",
        help=f"lines at work at once (default: {_PER_PLACE} for each of --max-num-seqs)",
    )
    add_print_config(parser)
    add_settings(parser, ServerConfig, "requests and log", leave_out=_OF_THE_NETWORK)
    add_settings(parser, EngineConfig, "engine")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0 when each line has its answer, 1 when some failed. Raises ConfigError, ModelError, OutputError."""
    engine, server = resolve(EngineConfig, arguments), resolve(ServerConfig, arguments)
    if arguments.print_config:
        print(config_table(engine))
        return 0
    source, target = _paths(arguments)
    num_in_flight = _num_in_flight(arguments.max_in_flight, engine.value)
    level = "warning" if server.sources["log_level"] == "default" else server.value.log_level
    set_up_logging(level, log_format=server.value.log_format)

    from legato.api.engine_service import EngineService  # a second of imports, which --help need not wait for
    from legato.cli.batch.output import open_output
    from legato.cli.batch.tally import Tally
    from legato.modelfiles.catalog import resolve as resolve_model

    with _open_input(source) as stream, open_output(target) as output:
        resolve_model(engine.value.model, revision=engine.value.revision, report=_tell)
        tally = Tally(_size(stream))
        service = EngineService(engine.value)
        defaults: dict[str, Any] = {
            each.name: each.default for each in fields(ServerConfig) if each.name in _OF_THE_NETWORK
        }
        server_config = replace(server.value, **defaults)  # nobody else can ask this app
        try:
            asyncio.run(_answer_all(service, server_config, stream, output, tally, num_in_flight))
        except KeyboardInterrupt:
            again = "" if target is None else "; the same command goes on from here"
            _tell(f"\nlegato: interrupted: {tally.summary()}{again}")
            raise
    _tell(f"legato: {tally.summary()}")
    return 1 if tally.has_failures else 0


async def _answer_all(
    service: "EngineService",
    server: ServerConfig,
    stream: BinaryIO,
    output: "Output",
    tally: "Tally",
    num_in_flight: int,
) -> None:
    from legato.api.asgi import app_for
    from legato.cli.batch.lines import read_lines
    from legato.cli.batch.runner import BatchRun
    from legato.core.background import cancel_and_wait

    app = app_for(service, server)
    lines = read_lines(stream, output.answered)
    with Progress("batch") as progress:
        batch = BatchRun(app, service, lines, output, tally, _Teller(progress).tell)
        showing = asyncio.create_task(_show(progress, service, tally))
        try:
            await batch.run(num_in_flight)
        finally:
            await cancel_and_wait(showing)
            await service.close()


async def _show(progress: Progress, service: "EngineService", tally: "Tally") -> None:
    """Show the engine's start, then the batch's progress, until cancelled."""
    while not (state := service.state()).is_ready:
        progress.show(state.progress, f"loading {service.names[0]}")
        await asyncio.sleep(_REDRAW_S)
    tally.start()
    while True:
        await asyncio.sleep(_REDRAW_S if progress.is_terminal else _LOG_S)
        progress.show(tally.share, tally.note())


class _Teller:
    """Tells of lines beside the bar; of so many that all else is lost, only the first."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._num_told = 0

    def tell(self, text: str) -> None:
        self._num_told += 1
        if self._num_told <= _MAX_TOLD:
            self._progress.tell(f"legato: {text}")
        elif self._num_told == _MAX_TOLD + 1:
            self._progress.tell("legato: and more, which only the output tells")


def _paths(arguments: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Input and output; None where - is given."""
    given = {text for text in (arguments.positional_input, arguments.input_file) if text is not None}
    if len(given) != 1 or arguments.output_file is None:
        raise ConfigError("give one input and one output: legato batch in.jsonl -o out.jsonl")
    [source_text] = given
    source, target = (None if text == "-" else Path(text) for text in (source_text, arguments.output_file))
    if source and target and target.exists() and source.exists() and source.samefile(target):
        raise ConfigError(f"--output-file {target}: that is the input; name another file")
    return source, target


def _num_in_flight(given: int | None, engine: EngineConfig) -> int:
    if given is not None and given < 1:
        raise ConfigError(f"--max-in-flight {given}: must be at least 1")
    return given or _PER_PLACE * (engine.max_num_seqs or _DEFAULT_PLACES)


@contextmanager
def _open_input(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        # Ours, and never closed: after Ctrl-C a thread may still wait in it, and an interpreter that ends
        # while one waits in sys.stdin.buffer aborts.
        yield open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ConfigError(f"the input {path}: {error.strerror}") from None
    with stream:
        yield stream


def _size(stream: BinaryIO) -> int | None:
    """Bytes of a file; None for a pipe or a terminal."""
    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
