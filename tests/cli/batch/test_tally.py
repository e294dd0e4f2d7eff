"""Counts, rates and the time that is left, against a clock in sight."""

import pytest

from legato.cli.batch.lines import KnownLine, Line
from legato.cli.batch.rows import Row, answer_row
from legato.cli.batch.tally import Tally, duration

LINE = Line(1, 100, "a", "/v1/completions", b"{}")


def row(status: int = 200) -> Row:
    return answer_row(LINE, status, "req", b'{"usage":{"completion_tokens":30}}')


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def test_rates_and_time_left_are_those_of_this_run_and_the_share_is_of_all() -> None:
    clock = Clock()
    tally = Tally(1000, clock)
    tally.skip(KnownLine(200, is_failure=False))
    tally.start()
    clock.now += 10
    tally.count(row(), 100)
    tally.count(row(), 100)
    assert tally.share == 0.4
    assert tally.note() == "3 lines, 0.2 requests/s, 6 tokens/s, 30 s left"
    assert tally.summary() == "2 answered; 1 were there before; 10 s; 0.2 requests/s; 6 tokens/s"
    assert not tally.has_failures


def test_input_of_unknown_size_has_no_share_and_no_time_left() -> None:
    clock = Clock()
    tally = Tally(None, clock)
    assert (tally.share, tally.note()) == (None, "0 lines")
    clock.now += 2
    tally.count(row(), 100)
    assert tally.share is None
    assert tally.note() == "1 lines, 0.5 requests/s, 15 tokens/s"


@pytest.mark.parametrize("is_known", [True, False])
def test_failures_are_told_those_of_earlier_runs_too(is_known: bool) -> None:
    tally = Tally(1000, Clock())
    if is_known:
        tally.skip(KnownLine(100, is_failure=True))
    else:
        tally.count(row(400), 100)
    assert tally.has_failures
    assert ("1 were there before, of which 1 failed" if is_known else "1 failed") in tally.summary()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (75, "1 min 15 s"), (7384, "2 h 3 min")]
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text
