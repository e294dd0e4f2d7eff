"""A conversation: history, commands, Ctrl-C, a full context; and on a terminal, with a real engine."""

import asyncio
import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato.cli.chat import Conversation, converse, remark
from legato.core.config import DEFAULT_MODEL
from legato.core.sampling_params import SamplingParams
from tests.fakes import FakeGenerator

PARAMS = SamplingParams(max_tokens=None)


def talk(
    monkeypatch: pytest.MonkeyPatch, generator: FakeGenerator, *lines: str, system: str | None = None
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    converse(Conversation(generator, PARAMS, system))


def prompts(generator: FakeGenerator) -> list[str]:
    return [bytes(submission["prompts"][0]).decode() for submission in generator.submissions]


def test_answers_become_part_of_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = FakeGenerator("yes")
    talk(monkeypatch, generator, "one", "", "two", system="be brief")
    assert prompts(generator) == [
        "<system>be brief<user>one<assistant>",
        "<system>be brief<user>one<assistant>yes<user>two<assistant>",
    ]
    told = capsys.readouterr()
    assert told.out == "yes\nyes\n"
    assert [line.split(" in ")[0] for line in told.err.splitlines()] == ["3 tokens", "3 tokens"]


def test_reset_forgets_and_exit_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = FakeGenerator("yes")
    talk(monkeypatch, generator, "one", "/reset", "two", "/help", "/exit", "three", system="be brief")
    assert prompts(generator) == [
        "<system>be brief<user>one<assistant>",
        "<system>be brief<user>two<assistant>",
    ]
    assert "/reset forgets what was said" in capsys.readouterr().err


class Interrupt(asyncio.Event):
    """Where the stream would pause, the user presses Ctrl-C."""

    async def wait(self) -> bool:
        signal.raise_signal(signal.SIGINT)
        return await super().wait()


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = FakeGenerator("yes")
    generator.pause_after, generator.resumed = 2, Interrupt()
    talk(monkeypatch, generator, "one")
    assert generator.num_aborted == 1
    assert capsys.readouterr() == ("ye\n", "stopped\n")

    talk_on = FakeGenerator("yes")
    talk_on.pause_after, talk_on.resumed = 2, Interrupt()
    talk(monkeypatch, talk_on, "one", "two")
    assert prompts(talk_on)[1] == "<user>one<assistant>ye<user>two<assistant>"


def test_full_context_is_explained_and_the_question_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = FakeGenerator("yes")
    talk(monkeypatch, generator, "x" * 2000, "two")
    assert prompts(generator)[-1] == "<user>two<assistant>"
    assert "above the context of 1024 (/reset makes room)" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_remarks_are_dim_on_a_terminal_unless_the_user_wants_no_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain, piped = Terminal(), Terminal(), io.StringIO()
    remark("hi", coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    remark("hi", plain)
    monkeypatch.delenv("NO_COLOR")
    remark("hi", piped)
    assert (coloured.getvalue(), plain.getvalue(), piped.getvalue()) == ("\x1b[2mhi\x1b[0m\n", "hi\n", "hi\n")


# real engines


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: ours, the program's."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def read_until(fd: int, text: str) -> str:
    found = ""
    while text not in found:
        found += os.read(fd, 1024).decode(errors="replace")
    return found


def test_terminal_shows_a_bar_a_prompt_and_tokens_per_second(
    terminal: tuple[int, int], tiny_model: Path
) -> None:
    ours, theirs = terminal
    command = [
        sys.executable,
        "-m",
        "legato",
        "chat",
        str(tiny_model),
        "--max-tokens",
        "8",
        "--temperature",
        "0",
    ]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    start = read_until(ours, "> ")
    assert "loading tiny [" in start
    assert "Ctrl-D ends" in start
    os.write(ours, b"hello\n")
    assert "tokens/s" in read_until(ours, "> ")
    os.write(ours, b"\x04")
    assert process.wait(10) == 0


@pytest.mark.model
def test_model_remembers_what_was_said() -> None:
    command = [
        sys.executable,
        "-m",
        "legato",
        "chat",
        DEFAULT_MODEL,
        "--temperature",
        "0",
        "--max-tokens",
        "60",
    ]
    questions = "What is the capital of France?\nAnd of Italy?\n"
    result = subprocess.run(command, input=questions, capture_output=True, text=True, check=True)
    paris, rome = result.stdout.splitlines()
    assert "Paris" in paris
    assert "Rome" in rome
    assert result.stderr.count("tokens/s") == 2
