"""`legato generate`: text on standard output, and nothing else there."""

import subprocess
import sys
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.core.config import DEFAULT_MODEL
from tests.tiny_model import write_tiny_model

GREEDY = ["--temperature", "0", "--max-tokens", "8"]


def generate(*argv: str, typed: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "legato", "generate", *argv]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60)


def test_prompt_as_argument_and_from_standard_input_give_the_same_text(tiny_model: Path) -> None:
    argued = generate("hello", "-m", str(tiny_model), *GREEDY)
    typed = generate("-", "-m", str(tiny_model), *GREEDY, typed="hello\n")
    assert argued.stdout == typed.stdout != "\n"
    assert (argued.returncode, argued.stderr) == (0, "")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["generate"], "there is no prompt"),
        (["generate", "hi", "--temperature", "9"], "legato: error: --temperature must "),
        (["chat", "--max-tokens", "0"], "legato: error: --max-tokens must "),
    ],
)
def test_what_does_not_fit_is_told_before_the_model_is_loaded(
    argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--model", "/nowhere"]) == 2
    assert error in capsys.readouterr().err


def test_chat_with_a_model_that_cannot_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "tiny", chat_template=None)
    assert main(["chat", str(model)]) == 2
    remedy = f'legato generate --model {model} "…" continues'
    assert f"tiny has no chat template; {remedy}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["chat"], ["generate", "Hi", "--model"]])
def test_text_for_a_model_without_a_tokenizer_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    model = write_tiny_model(tmp_path / "tiny", has_tokenizer=False)
    assert main([*command, str(model)]) == 2
    assert "tiny has no tokenizer; name one: --tokenizer DIR_OR_FILE" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_weights_of_a_file_are_not_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    port = ["--port", "0", "--log-level", "error"] if command == "serve" else []
    assert main([command, str(tmp_path / "tiny.gguf"), "--load-format", "dummy", *port]) == 2
    assert "--load-format dummy is for a directory" in capsys.readouterr().err


def test_model_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    result = generate("hello", "-m", str(tmp_path / "broken.gguf"))
    assert result.returncode == 1
    assert "legato: error: " in result.stderr
    assert "broken.gguf" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.model
def test_default_model_knows_paris() -> None:
    result = generate("The capital of France is", "-m", DEFAULT_MODEL, *GREEDY)
    assert result.stdout.startswith(" Paris")
