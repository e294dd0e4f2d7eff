"""The figures of `legato bench batching` as text."""

from collections.abc import Sequence

from legato.bench.batching import Comparison, predict_static_s
from legato.bench.page import describe_machine, markdown_table
from legato.core.config import STATIC_ROUND

TITLE = "Batching: static rounds and continuous"
HEADER = (
    "N",
    "static s",
    "continuous s",
    "static req/s",
    "continuous req/s",
    "ratio",
    "rounds",
    f"ceil(N/{STATIC_ROUND}) x round s",
)


def batching_table(comparisons: Sequence[Comparison]) -> str:
    """Without a measured full round there is no prediction."""
    round_s = next((each.static.seconds for each in comparisons if each.num_prompts == STATIC_ROUND), None)
    return markdown_table([HEADER, *(_row(each, round_s) for each in comparisons)])


def batching_section(comparisons: Sequence[Comparison], *, model: str, command: str) -> str:
    """The table with what one needs to read it and to make it again."""
    return f"""One `POST /generate` with N prompts of mixed lengths to a server with `--batching static` \
(rounds of {STATIC_ROUND}) and to one with `--batching continuous`. Both gave the same texts. *ratio*: how \
many times faster continuous was. The last column is what the rounds should take if each took as long as the \
measured round of {STATIC_ROUND}.

{batching_table(comparisons)}

Model `{model}`; {describe_machine()}. Made by

    {command}
"""


def _row(comparison: Comparison, round_s: float | None) -> tuple[str, ...]:
    num, static, continuous = comparison.num_prompts, comparison.static, comparison.continuous
    return (
        str(num),
        f"{static.seconds:.2f}",
        f"{continuous.seconds:.2f}",
        f"{num / static.seconds:.2f}",
        f"{num / continuous.seconds:.2f}",
        f"{comparison.ratio:.2f}",
        str(static.num_rounds),
        "-" if round_s is None else f"{predict_static_s(num, round_s):.2f}",
    )
