"""`legato batch` as a process: files and pipes, exit codes, Ctrl-C, and a kill at any moment."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from legato.cli.batch import command as batch_module
from legato.cli.main import main
from tests.e2e.conftest import wait_until

Json = dict[str, Any]
PATIENCE_S = 60.0


def requests(num_lines: int, max_tokens: int = 24) -> list[Json]:
    """Greedy and seeded ones by turns; no prompt is long enough to be found in the cache, by whoever ran."""
    rng = random.Random(0)
    return [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "prompt": f"{number} once",
                "max_tokens": rng.randrange(1, max_tokens),
                "ignore_eos": True,
                **({"temperature": 0} if number % 2 else {"temperature": 1, "seed": number}),
            },
        }
        for number in range(num_lines)
    ]


def write_lines(path: Path, lines: Iterable[Json | str]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def batch_command(model: Path, *argv: object) -> list[str]:
    return [sys.executable, "-m", "legato", "batch", *map(str, argv), "--model", str(model)]


def run_batch(model: Path, *argv: object) -> int:
    """The exit code, in this process: it starts sooner than one of its own."""
    return main(["batch", *map(str, argv), "--model", str(model)])


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def answers(path: Path) -> dict[str, Any]:
    """custom_id -> body without id and time. Fails for a custom_id that stands there twice."""
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    bodies = {row["custom_id"]: row["response"]["body"] for row in rows}
    assert len(bodies) == len(rows)
    return {name: {**body, "id": None, "created": None} for name, body in bodies.items()}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pytest's own logging as it is."""
    monkeypatch.setattr(batch_module, "set_up_logging", lambda *_, **__: None)


@pytest.fixture(scope="module")
def input_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("batch") / "in.jsonl", requests(120))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, input_file: Path, tiny_model: Path) -> Json:
    out = tmp_path_factory.mktemp("batch") / "out.jsonl"
    process = subprocess.run(batch_command(tiny_model, input_file, "-o", out), capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "")
    assert "legato: 120 answered; " in process.stderr
    assert "tokens/s" in process.stderr
    return answers(out)


def kill_at(out: Path, num_bytes: int, command: list[str]) -> None:
    """Run a batch and kill it as soon as its output has more than `num_bytes`, whole rows or not."""
    process = subprocess.Popen(command)
    wait_until(lambda: process.poll() is not None or size_of(out) > num_bytes, PATIENCE_S)
    process.kill()
    process.wait()


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_batch_goes_on_where_it_was_and_loses_and_doubles_nothing(
    tmp_path: Path,
    input_file: Path,
    tiny_model: Path,
    undisturbed: Json,
    num_kills: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, rng = tmp_path / "out.jsonl", random.Random(num_kills)
    command, kept = batch_command(tiny_model, input_file, "-o", out), dict[str, Any]()
    for kill in range(num_kills):
        kill_at(out, size_of(out) + rng.randrange(30_000 // num_kills), command)
        whole = out.read_bytes().rpartition(b"\n")[0].splitlines()
        rows = {json.loads(row)["custom_id"]: row for row in whole}
        assert len(rows) == len(whole)
        assert {name: rows[name] for name in kept} == kept, kill
        kept = rows
    assert run_batch(tiny_model, input_file, "-o", out) == 0
    assert f"{len(kept)} were there before" in capsys.readouterr().err
    assert answers(out) == undisturbed


def test_interrupted_batch_says_so_and_goes_on(
    tmp_path: Path, input_file: Path, tiny_model: Path, undisturbed: Json
) -> None:
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        batch_command(tiny_model, "-", "-o", out), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"".join(input_file.read_bytes().splitlines(keepends=True)[:30]))
    process.stdin.flush()  # and left open, so that the batch cannot be done before it is interrupted
    wait_until(lambda: size_of(out), PATIENCE_S)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=PATIENCE_S)
    told = process.communicate()[1].decode()
    assert process.returncode == 130
    assert "interrupted: " in told
    assert "the same command goes on from here" in told
    assert "Traceback" not in told
    assert 0 < len(answers(out)) <= 30
    assert run_batch(tiny_model, input_file, "-o", out) == 0
    assert answers(out) == undisturbed


def test_pipes_in_and_out(tmp_path: Path, tiny_model: Path, undisturbed: Json) -> None:
    lines = requests(120)[:5]
    typed = "".join(json.dumps(line) + "\n" for line in lines)
    process = subprocess.run(
        batch_command(tiny_model, "-", "-o", "-"), input=typed, capture_output=True, text=True
    )
    assert process.returncode == 0
    (tmp_path / "out.jsonl").write_text(process.stdout)
    assert answers(tmp_path / "out.jsonl") == {
        line["custom_id"]: undisturbed[line["custom_id"]] for line in lines
    }


def test_failed_lines_make_the_exit_code_1_also_when_nothing_is_left_to_do(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*requests(2), "{", {**requests(3)[2], "body": {"prompt": "a", "stream": True}}]
    path, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert run_batch(tiny_model, "--input-file", path, "--output-file", out) == 1
    told = capsys.readouterr().err
    assert "legato: line 3: the line is not valid JSON" in told
    assert "legato: line 4 (line-2): body.stream must be false" in told
    assert "legato: 2 answered; 2 failed; " in told
    assert run_batch(tiny_model, path, "-o", out) == 1
    assert "legato: 0 answered; 4 were there before, of which 2 failed; " in capsys.readouterr().err


def test_other_name_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run-batch", "-i", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out.jsonl")]) == 2
    assert "none.jsonl: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ([], "give one input and one output"),
        (["in.jsonl"], "give one input and one output"),
        (["in.jsonl", "-i", "other.jsonl", "-o", "out.jsonl"], "give one input and one output"),
        (["in.jsonl", "-o", "out.jsonl", "--max-in-flight", "0"], "--max-in-flight 0: must be at least 1"),
        (["in.jsonl", "-o", "./in.jsonl"], "that is the input"),
        (["in.jsonl", "-o", "none/out.jsonl"], "No such file or directory"),
    ],
)
def test_command_line_that_does_not_fit_is_one_line(
    argv: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("")
    assert main(["batch", *argv]) == 2
    told = capsys.readouterr().err
    assert error in told
    assert told.count("\n") == 1


def test_missing_model_is_told_before_anything_is_answered(
    tmp_path: Path, input_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", str(input_file), "-o", str(tmp_path / "out.jsonl"), "-m", "/nowhere"]) == 1
    assert "no model '/nowhere'" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_print_config_needs_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "--print-config", "--max-num-seqs", "8"]) == 0
    assert "--max-num-seqs" in capsys.readouterr().out
