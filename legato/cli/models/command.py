"""`legato models`: what can be served by name, what of it is here and where, and what its numbers cost."""

import argparse
import sys

from legato.cli.models import check, listing, removal
from legato.core.errors import ModelError
from legato.modelfiles import catalog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    text = "the models known by name and those in the hub's cache: size, memory, licence, whether here"
    listing.add_arguments(actions.add_parser("list", help=text, description=text))
    for name, run, text in (
        ("pull", pull, "bring a model onto this machine, and print where it is"),
        ("where", where, "print where a model is, without downloading it"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("model", metavar="MODEL", help="a name of the list, or a hub name like org/name")
        action.add_argument("--revision", help="branch, tag or commit of a hub model")
        action.set_defaults(run=run)
    text = "delete a model that was pulled"
    removal.add_arguments(actions.add_parser("remove", help=text, description=text))
    text = "compare a model as it would be served with its weights in float32"
    check.add_arguments(actions.add_parser("check", help=text, description=text))


def pull(arguments: argparse.Namespace) -> int:
    """Progress goes to standard error, so that the path alone can be captured."""
    files = catalog.pull(
        arguments.model, revision=arguments.revision, report=lambda line: print(line, file=sys.stderr)
    )
    print(files.path)
    return 0


def where(arguments: argparse.Namespace) -> int:
    path = catalog.where(arguments.model, revision=arguments.revision)
    if path is None:
        name = arguments.model
        raise ModelError(f"{name} is not on this machine; this brings it: legato models pull {name}")
    print(path)
    return 0
