"""`legato chat`: a conversation on the terminal; answers stream, Ctrl-C stops one, Ctrl-D ends it all."""

import argparse
import asyncio
import os
import sys
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, TextIO

from legato.cli.local_model import add_local_model, open_local, print_config
from legato.cli.options import add_model
from legato.cli.sampling_options import sampling_params
from legato.core.errors import EngineDiedError, RequestError
from legato.core.sampling_params import FinishReason, SamplingParams

if TYPE_CHECKING:
    from legato.frontend.generator import ChatMessage, Generator

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
COMMANDS = "/reset forgets what was said, /exit ends; Ctrl-C stops an answer, Ctrl-D ends"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--system", help="a message that tells the model how to behave")
    add_local_model(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.print_config:
        return print_config(arguments)
    sampling_params(arguments, {})  # a value that does not fit is told before the model is loaded
    with open_local(arguments, is_for_chat=True) as opened:
        params = sampling_params(arguments, {"max_tokens": None, **opened.default_params})
        converse(Conversation(opened.llm, params, arguments.system))
    return 0


class Conversation:
    """What was said so far, and a model that answers."""

    def __init__(self, generator: "Generator", params: SamplingParams, system: str | None) -> None:
        self._generator = generator
        self._params = params
        self._system: list[ChatMessage] = [{"role": "system", "content": system}] if system else []
        self._said: list[ChatMessage] = []

    def reset(self) -> None:
        self._said = []

    async def answer(self, question: str) -> str:
        """Print the answer as it comes; returns what to say of it.

        What had come of an answer that was stopped stays part of the conversation.
        Raises RequestError, with the question forgotten, when the context has no room for it.
        """
        asked: list[ChatMessage] = [*self._said, {"role": "user", "content": question}]
        text, num_tokens, note, started = "", 0, "", time.perf_counter()
        try:
            prompt = await self._generator.chat_prompt([*self._system, *asked])
            async with aclosing(await self._generator.submit([prompt], self._params)) as stream:
                async for delta in stream:
                    print(delta.text, end="", flush=True)
                    text += delta.text
                    num_tokens = delta.usage.completion_tokens
                    if delta.finish_reason is FinishReason.LENGTH:
                        note = ", cut at the length limit"
        finally:
            if text:
                print()
                self._said = [*asked, {"role": "assistant", "content": text}]
        seconds = time.perf_counter() - started
        return f"{num_tokens} tokens in {seconds:.1f} s, {num_tokens / seconds:.1f} tokens/s{note}"


def converse(conversation: Conversation) -> None:
    """Answer line after line of standard input, to its end."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        remark(COMMANDS)
        import readline  # noqa: F401 - gives input() a history and an editor
    with asyncio.Runner() as runner:
        while True:
            try:
                line = input("> " if is_terminal else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            if line == "/exit":
                return
            if line == "/reset":
                conversation.reset()
                remark("forgotten")
            elif line.startswith("/"):
                remark(COMMANDS)
            elif line:
                _answer(runner, conversation, line)


def _answer(runner: asyncio.Runner, conversation: Conversation, question: str) -> None:
    try:
        remark(runner.run(conversation.answer(question)))
    except KeyboardInterrupt:
        remark("stopped")
    except RequestError as error:
        remark(f"{error} (/reset makes room)" if error.code == "context_length_exceeded" else str(error))
    except EngineDiedError as error:
        remark(f"{error}; ask again")


def remark(text: str, stream: TextIO | None = None) -> None:
    """Say something beside the conversation: on standard error, dim on a terminal that likes colours."""
    stream = sys.stderr if stream is None else stream
    is_dim = stream.isatty() and not os.environ.get("NO_COLOR")
    print(f"{DIM}{text}{PLAIN}" if is_dim else text, file=stream, flush=True)
