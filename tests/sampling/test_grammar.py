"""What rows do when the worker of their grammars dies: they ask again, and the one at fault fails alone."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from legato.core.plan import RowError, RowStart
from legato.core.sampling_params import SamplingParams
from legato.sampling.grammar import MAX_DEATHS, RowGrammars
from legato.sampling.grammar_client import WorkerGoneError
from legato.sampling.row_sampler import SampleRow, sampling_batch

A_AND_B = (0b11).to_bytes(4, "little")
AMONG_OTHERS, ALONE = WorkerGoneError(was_alone=False), WorkerGoneError(was_alone=True)


class ScriptedClient:
    """Answers each Begin with the next of `answers`."""

    def __init__(self, answers: Sequence[bytes | WorkerGoneError]) -> None:
        self.answers = list(answers)

    def begin(self, row: int, grammar: str, output_ids: Sequence[int]) -> "Future[bytes]":
        mask: Future[bytes] = Future()
        answer = self.answers.pop(0)
        if isinstance(answer, bytes):
            mask.set_result(answer)
        else:
            mask.set_exception(answer)
        return mask


def first_mask(*answers: bytes | WorkerGoneError) -> int | RowError:
    """The bits of a row's first mask, or why it has none; all answers are asked for."""
    grammars = RowGrammars(Path("no tokenizer"), vocab_size=32)
    client = grammars._client = ScriptedClient(answers)  # type: ignore[assignment]
    start = RowStart([5], 1, SamplingParams(grammar="a grammar"), 0, frozenset())
    grammars.begin([(0, start)])
    batch = sampling_batch([SampleRow("r", 0, 1, start)])
    allowed, errors = grammars.allowed(batch, np.array([[5, 0]], np.int32))
    assert not client.answers
    return errors[0] if errors else int(allowed.masks[0, 0])


@pytest.mark.parametrize("deaths", [[ALONE], [AMONG_OTHERS] * 2, [ALONE, AMONG_OTHERS, AMONG_OTHERS]])
def test_row_outlives_deaths_that_another_may_have_caused(deaths: list[WorkerGoneError]) -> None:
    assert first_mask(*deaths, A_AND_B) == 0b11


@pytest.mark.parametrize("deaths", [[ALONE] * 2, [AMONG_OTHERS, ALONE], [AMONG_OTHERS] * MAX_DEATHS])
def test_row_over_which_the_worker_dies_again_fails(deaths: list[WorkerGoneError]) -> None:
    error = first_mask(*deaths)
    assert isinstance(error, RowError)
    assert error.code == "grammar_failed"
    assert f"has died {len(deaths)} times over it; write it another way" in error.message
