"""The command itself: what it imports, how errors end, what it suggests."""

import os
import subprocess
import sys

import pytest

from legato.cli.main import main
from legato.cli.models import listing
from legato.core.errors import ConfigError, ModelError, RequestError


def run_failing(argv: list[str]) -> int:
    """The exit code, whether main returned it or argparse raised it."""
    try:
        return main(argv)
    except SystemExit as end:
        return int(end.code or 0)


def test_help_imports_nothing_that_is_slow() -> None:
    code = (
        "import sys\n"
        "from legato.cli.main import make_parser\n"
        "text = make_parser(['--help']).format_help()\n"
        "assert 'serve a model over HTTP' in text\n"
        "print({'numpy', 'fastapi', 'uvicorn', 'asyncio', 'msgspec', 'tokenizers'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_module_is_the_command() -> None:
    output = subprocess.check_output([sys.executable, "-m", "legato", "--version"], text=True)
    assert output.startswith("legato ")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["serve"], "serve"),
        (["generate"], "generate"),
        (["complete"], "generate"),
        (["chat"], "chat"),
        (["batch"], "batch"),
        (["run-batch"], "batch"),
        (["models"], "models"),
        (["models", "pull"], "models pull"),
        (["bench", "batching"], "bench batching"),
        (["bench", "serve"], "bench serve"),
        (["bench", "kernels"], "bench kernels"),
        (["doctor"], "doctor"),
        (["collect-env"], "doctor"),
    ],
)
def test_each_command_has_help(argv: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_failing([*argv, "--help"]) == 0
    assert f"usage: legato {name} [-h]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (
            ["serve", "--max-num-seq", "3"],
            "legato serve: error: unknown argument --max-num-seq; did you mean --max-num-seqs?",
        ),
        (["serve", "--api-keyy=secret"], "unknown argument --api-keyy; did you mean --api-key?"),
        (["serve", "one", "--model", "two"], "models are named in two ways: one and --model two; name all"),
        (["generate", "tiny", "Hello"], "unknown argument Hello: the prompt is one argument"),
        (["chat", "one", "two"], "unknown argument two (see legato chat --help)"),
        (["serve", "--port", "http"], "legato: error: --port http: expected a whole number"),
        (["serve", "--port", "65536"], "legato: error: --port 65536: must be at most 65535"),
        (
            ["serve", "--trust-remote-code"],
            "legato: error: --trust-remote-code is refused: legato never runs",
        ),
        (["serve", "--vllm-url", "localhost:8001"], "--vllm-url localhost:8001: expected a URL like http://"),
        (["serve", "--batching", "dynamic"], "invalid choice: 'dynamic'"),
        (["serve", "--tensor-parallel-size", "2"], "unknown argument --tensor-parallel-size"),
        (["serv"], "invalid choice: 'serv' (choose from 'serve'"),
        ([], "the following arguments are required: COMMAND"),
        (["models"], "the following arguments are required: ACTION"),
    ],
)
def test_command_line_that_does_not_fit_is_one_line_and_exit_code_2(
    argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_failing(argv) == 2
    told = capsys.readouterr()
    assert error in told.err
    assert told.err.count("\n") == 1
    assert "secret" not in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a flag is wrong"), 2),
        (RequestError("temperature is wrong", param="temperature"), 2),
        (ModelError("the model is missing"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_no_traceback(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(listing, "run", fail)
    assert main(["models", "list"]) == code
    assert capsys.readouterr().err == (f"legato: error: {error}\n" if str(error) else "\n")


def test_variable_that_nothing_reads_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_BATCHIN", "static")
    assert main(["models", "list"]) == 0
    assert capsys.readouterr().err == (
        "legato: warning: the variable LEGATO_BATCHIN is not known and changes nothing;"
        " did you mean LEGATO_BATCHING?\n"
    )


def test_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "legato", "models", "list"]
    with os.fdopen(writing, "wb") as output:
        result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "")
