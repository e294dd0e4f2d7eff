"""Flags for how tokens are chosen, shared by `legato generate` and `legato chat`."""

import argparse
from collections.abc import Mapping
from typing import Any

from legato.cli.options import flag_of
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams

# field of SamplingParams -> its type, and what it does
FLAGS: Mapping[str, tuple[type, str]] = {
    "max_tokens": (int, "tokens of an answer at most"),
    "temperature": (float, "0 takes the most probable token, 1 follows the model's probabilities"),
    "top_p": (float, "consider the most probable tokens that hold this share of the probability"),
    "top_k": (int, "consider so many tokens; 0 considers all"),
    "min_p": (float, "consider tokens at least this probable, relative to the most probable one"),
    "seed": (int, "makes answers repeatable"),
}


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling, by default the model's own")
    for name, (kind, text) in FLAGS.items():
        flag = flag_of(name)
        metavar = name.rpartition("_")[2].upper()
        group.add_argument(flag, dest=name, type=kind, default=argparse.SUPPRESS, help=text, metavar=metavar)
    group.add_argument(
        "--stop", action="append", default=argparse.SUPPRESS, help="a text that ends the answer; repeatable"
    )


def sampling_params(arguments: argparse.Namespace, defaults: Mapping[str, Any]) -> SamplingParams:
    """What the flags say, else what `defaults` say. Raises RequestError naming the flag that does not fit."""
    given = {name: value for name, value in vars(arguments).items() if name in FLAGS}
    if "stop" in arguments:
        given["stop"] = tuple(arguments.stop)
    if given.get("max_tokens") == 0:  # a prompt alone can be scored, but there is nothing of it to print
        raise RequestError("--max-tokens must be a whole number of at least 1, not 0", param="max_tokens")
    try:
        return SamplingParams(**{**defaults, **given})
    except RequestError as error:
        if error.param is None:
            raise
        raise RequestError(str(error).replace(error.param, flag_of(error.param)), param=error.param) from None
