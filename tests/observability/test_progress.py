"""A bar on a terminal, lines elsewhere."""

import io

from legato.observability.progress import ERASE_LINE, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_one_line_that_grows_and_goes() -> None:
    terminal = Terminal()
    with Progress("loading", stream=terminal) as progress:
        progress.show(0.0, "config")
        progress.show(0.5, "weights")
    first, second, last = terminal.getvalue().split(ERASE_LINE)[1:]
    assert first == "loading [........................]   0% config"
    assert second == "loading [############............]  50% weights"
    assert last == ""


def test_log_gets_a_line_for_each_part() -> None:
    log = io.StringIO()
    with Progress("bench", stream=log) as progress:
        for note in ("4 prompts", "4 prompts", "16 prompts"):
            progress.show(0.5, note)
    assert log.getvalue() == "bench: 4 prompts\nbench: 16 prompts\n"


def test_log_may_be_left_alone() -> None:
    log = io.StringIO()
    with Progress("loading", has_lines=False, stream=log) as progress:
        progress.show(0.5, "weights")
    assert log.getvalue() == ""


def test_share_that_nobody_knows_is_no_bar() -> None:
    terminal = Terminal()
    with Progress("batch", stream=terminal) as progress:
        progress.show(None, "7 lines")
    assert terminal.getvalue().split(ERASE_LINE)[1] == "batch: 7 lines"


def test_line_that_stays_is_told_above_the_bar_and_plainly_in_a_log() -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        with Progress("batch", has_lines=False, stream=stream) as progress:
            progress.show(0.5, "7 lines")
            progress.tell("line 3: no JSON")
    assert terminal.getvalue().split(ERASE_LINE)[2].splitlines() == [
        "line 3: no JSON",
        "batch [############............]  50% 7 lines",
    ]
    assert log.getvalue() == "line 3: no JSON\n"
