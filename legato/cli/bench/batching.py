"""`legato bench batching`: one request with many prompts, static and continuous, in a table."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from legato.core.config import DEFAULT_MODEL
from legato.core.errors import ConfigError, RequestError
from legato.observability.progress import Progress

if TYPE_CHECKING:
    from legato.tokenization.chat_template import ChatTemplate

SYSTEM = {"role": "system", "content": "Be brief."}  # shorter than what templates say by themselves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", "-m", default=DEFAULT_MODEL, help="as for legato serve (default: %(default)s)"
    )
    parser.add_argument(
        "--num-prompts",
        type=int,
        nargs="+",
        metavar="N",
        default=[1, 4, 16, 64],
        help="prompts in the request (default: 1 4 16 64, some minutes); a measured 4 predicts the others",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=50, help="of each answer (default: %(default)s)", metavar="TOKENS"
    )
    parser.add_argument("--repeats", type=int, default=1, help="the median counts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="put a section with the table into it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises BenchError when a server fails or the policies give different texts."""
    for flag, least in (("--num-prompts", min(arguments.num_prompts)), ("--repeats", arguments.repeats)):
        if least < 1:
            raise ConfigError(f"{flag} {least}: must be at least 1")
    from legato.bench.batching import Workload, compare_batching
    from legato.bench.batching_report import TITLE, batching_section, batching_table
    from legato.bench.page import write_section

    workload = Workload(
        prompts=_prompts(arguments.model, max(arguments.num_prompts), arguments.seed),
        nums=arguments.num_prompts,
        repeats=arguments.repeats,
        fields={"max_tokens": arguments.max_tokens, "add_special_tokens": False},
    )
    with Progress("bench batching") as progress:
        comparisons = compare_batching(arguments.model, workload, progress.show)
    print(batching_table(comparisons))
    if arguments.output is not None:
        section = batching_section(comparisons, model=arguments.model, command=arguments.command_line)
        write_section(arguments.output, TITLE, section)
    return 0


def _prompts(model: str, num: int, seed: int) -> Sequence[str]:
    """Questions in the model's chat template, so that answers end; bare where it has none."""
    from legato.bench.workload import make_questions
    from legato.modelfiles.catalog import resolve
    from legato.tokenization.chat_template import load_chat_template

    questions = make_questions(num, seed)
    template = load_chat_template(resolve(model).path)
    return questions if template is None else [_rendered(template, question) for question in questions]


def _rendered(template: "ChatTemplate", question: str) -> str:
    user = {"role": "user", "content": question}
    try:
        return template.render([SYSTEM, user])
    except RequestError:
        return template.render([user])  # some templates know no system message
