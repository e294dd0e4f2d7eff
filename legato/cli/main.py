"""The `legato` command: finds and runs a command; an error becomes one line and an exit code."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from legato import __version__
from legato.cli.parser import Parser
from legato.core.errors import ConfigError, LegatoError, RequestError
from legato.core.settings import unknown_variables

INTERRUPTED = 130  # as shells report a program that Ctrl-C has ended


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its module, which has add_arguments(parser); that sets `run`, arguments -> exit code."""

    name: str
    module: str
    help: str
    aliases: tuple[str, ...] = ()


COMMANDS = (
    Command("serve", "legato.cli.serve", "serve a model over HTTP"),
    Command("generate", "legato.cli.generate", "continue a prompt", aliases=("complete",)),
    Command("chat", "legato.cli.chat", "talk with a model"),
    Command("batch", "legato.cli.batch.command", "answer a file of requests", aliases=("run-batch",)),
    Command(
        "models", "legato.cli.models.command", "list models, bring them here, say where they are, check them"
    ),
    Command("bench", "legato.cli.bench.command", "measure"),
    Command("sim", "legato.cli.sim.command", "put scheduling and recovery through random scenarios"),
    Command("replay", "legato.cli.replay", "make recorded scheduling decisions again, and compare"),
    Command(
        "doctor", "legato.cli.doctor.command", "say what is here, and what is wrong", aliases=("collect-env",)
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code is 1 for a failure, 2 for a command line that does not fit."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = make_parser(argv).parse_args(argv)
        for warning in unknown_variables():
            print(f"legato: warning: {warning}", file=sys.stderr)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except LegatoError as error:
        print(f"legato: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | RequestError) else 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has left; nor may the interpreter flush into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def make_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands; only the module of the one that `argv` names is imported."""
    parser = Parser(prog="legato", description="Large language models on the machine you have.")
    parser.add_argument("--version", action="version", version=f"legato {__version__}")
    parser.set_defaults(command_line=shlex.join(["legato", *argv]))  # for what is written down
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        names = (command.name, *command.aliases)
        child = commands.add_parser(command.name, aliases=command.aliases, help=command.help)
        if argv and argv[0] in names:
            import_module(command.module).add_arguments(child)
    return parser
