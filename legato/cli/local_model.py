"""A model in an engine of its own for one command: quiet, with a bar while it loads."""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from legato.cli.options import add_print_config, add_settings, config_table, resolve
from legato.cli.sampling_options import add_sampling
from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError, ModelError, NotReadyError
from legato.observability.logs import set_up_logging
from legato.observability.progress import Progress

if TYPE_CHECKING:
    from legato.frontend.open_llm import OpenedModel

# what is of use with many users alone, and the seed: here --seed is that of the answers
_LEFT_OUT = frozenset(
    {"served_model_name", "max_num_queued_reqs", "max_num_queued_tokens", "batching", "seed"}
)
_STAGES = ("", "imports", "config", "weights", "pool", "warm")  # of an engine's start, in order
_REDRAW_S = 0.1


def add_local_model(parser: argparse.ArgumentParser) -> None:
    """The flags of a command that loads a model itself."""
    add_print_config(parser)
    add_sampling(parser)
    add_settings(parser, EngineConfig, "engine", leave_out=_LEFT_OUT)
    parser.add_argument(
        "--log-level",
        default=argparse.SUPPRESS,
        metavar="LEVEL",
        help="debug, info, warning (the default) or error",
    )


def print_config(arguments: argparse.Namespace) -> int:
    print(config_table(resolve(EngineConfig, arguments)))
    return 0


@contextmanager
def open_local(arguments: argparse.Namespace, *, is_for_chat: bool = False) -> "Iterator[OpenedModel]":
    """A model that is ready; its engine ends with the block. Raises ModelError or ConfigError."""
    config, server = resolve(EngineConfig, arguments).value, resolve(ServerConfig, arguments)
    level = "warning" if server.sources["log_level"] == "default" else server.value.log_level
    set_up_logging(level, log_format=server.value.log_format)
    with open_engine(config, is_for_text=True, is_for_chat=is_for_chat) as opened:
        yield opened


@contextmanager
def open_engine(
    config: EngineConfig, *, is_for_text: bool = False, is_for_chat: bool = False
) -> "Iterator[OpenedModel]":
    """The model of a config, ready; its engine ends with the block. Raises ModelError or ConfigError.

    is_for_text, is_for_chat  refuse a model without a tokenizer, or that cannot chat, before it is loaded
    """
    from legato.frontend.open_llm import open_llm  # a third of a second, which --help need not wait for
    from legato.modelfiles.catalog import resolve as resolve_model

    # here, so that a download is told about however quiet the log is
    files = resolve_model(config.model, revision=config.revision, report=_tell)
    opened = open_llm(config)
    try:
        if is_for_text and opened.llm.tokenizer is None:
            raise ConfigError(f"{files.name} has no tokenizer; name one: --tokenizer DIR_OR_FILE")
        if is_for_chat and not opened.llm.can_chat:
            command = shlex.join(["legato", "generate", "--model", config.model])
            raise ConfigError(f'{files.name} has no chat template; {command} "…" continues a prompt')
        asyncio.run(_wait_ready(opened, files.name))
        yield opened
    finally:
        opened.llm.client.close()


async def _wait_ready(opened: "OpenedModel", name: str) -> None:
    client = opened.llm.client
    ready = asyncio.create_task(opened.llm.wait_ready())
    with Progress(f"loading {name}", has_lines=False) as progress:
        while not ready.done():
            stage = client.status.detail
            num_done = _STAGES.index(stage) if stage in _STAGES else 0
            progress.show(num_done / len(_STAGES), stage)
            await asyncio.wait([ready], timeout=_REDRAW_S)
    try:
        ready.result()
    except NotReadyError as error:
        raise ModelError(client.status.detail or str(error)) from None


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
