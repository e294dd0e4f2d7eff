"""`legato generate`: one prompt continued on standard output, as it comes."""

import argparse
import asyncio
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

from legato.cli.local_model import add_local_model, open_local, print_config
from legato.cli.sampling_options import sampling_params
from legato.core.errors import ConfigError
from legato.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from legato.frontend.generator import Generator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="the text to continue; - reads it from standard input")
    add_local_model(parser)
    hint = ": the prompt is one argument, in quotes, and the model is named by --model"
    parser.set_defaults(run=run, stray_hint=hint)


def run(arguments: argparse.Namespace) -> int:
    if arguments.print_config:
        return print_config(arguments)
    if arguments.prompt is None:
        raise ConfigError('there is no prompt: legato generate "Hello, I am", or - to read standard input')
    sampling_params(arguments, {})  # a value that does not fit is told before the model is loaded
    prompt = sys.stdin.read().removesuffix("\n") if arguments.prompt == "-" else arguments.prompt
    with open_local(arguments) as opened:
        asyncio.run(_continue(opened.llm, prompt, sampling_params(arguments, opened.default_params)))
    return 0


async def _continue(generator: "Generator", prompt: str, params: SamplingParams) -> None:
    async with aclosing(await generator.submit([prompt], params)) as stream:
        async for delta in stream:
            print(delta.text, end="", flush=True)
    print()
