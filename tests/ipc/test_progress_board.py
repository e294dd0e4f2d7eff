"""Two processes see one page: what computes, and that something moves."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from legato.ipc.progress_board import SIZE, ProgressBoard


@pytest.fixture
def board() -> Iterator[ProgressBoard]:
    board = ProgressBoard.create()
    yield board
    board.close()


def test_reader_sees_the_step_that_computes_until_it_ends(board: ProgressBoard) -> None:
    reader = ProgressBoard(os.dup(board.fd))
    assert reader.read() == (0, ())
    board.begin(["a", "b"])
    ticks, request_ids = reader.read()
    assert (ticks > 0, request_ids) == (True, ("a", "b"))
    board.end()
    assert reader.read() == (ticks + 1, ())
    reader.close()


def test_what_computes_is_seen_to_get_on_within_its_step(board: ProgressBoard) -> None:
    board.begin(["a"])
    before = board.read()
    code = (
        "import sys; from legato.ipc.progress_board import ProgressBoard\n"
        "ProgressBoard(int(sys.argv[1])).pulse()[0] += 3"
    )
    subprocess.run([sys.executable, "-c", code, str(board.fd)], pass_fds=[board.fd], check=True)
    assert board.read() == (before.ticks + 3, ("a",))


def test_what_a_process_wrote_outlives_its_sudden_death(board: ProgressBoard) -> None:
    code = (
        "import os, sys; from legato.ipc.progress_board import ProgressBoard\n"
        "ProgressBoard(int(sys.argv[1])).begin(['killer']); os.kill(os.getpid(), 9)"
    )
    died = subprocess.run([sys.executable, "-c", code, str(board.fd)], pass_fds=[board.fd], check=False)
    assert died.returncode == -9
    assert board.read().request_ids == ("killer",)


def test_more_ids_than_fit_leave_whole_ones(board: ProgressBoard) -> None:
    names = [f"request-{number}" for number in range(SIZE // 10)]
    board.begin(names)
    told = board.read().request_ids
    assert told == tuple(names[: len(told)])
    assert len(told) > 1000
