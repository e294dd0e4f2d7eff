"""`legato bench serve` with a small server of our own, with fake ones, and in process."""

import json
from pathlib import Path

import pytest

from legato.cli.main import main
from tests.bench.fake_openai import FakeOpenAI, serving

QUICK = ["--works", "W1_4", "--reps", "1"]


def rows(output: str) -> list[list[str]]:
    lines = [line for line in output.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_own_server_is_started_with_its_flags_and_measured_against_another(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, data = tmp_path / "page.md", tmp_path / "data.json"
    other = FakeOpenAI("other", [])
    with serving(other):
        command = [
            "bench",
            "serve",
            str(tiny_model),
            *QUICK,
            "--against",
            other.url,
            "--against-model",
            "theirs",
        ]
        flags = [
            "--dtype",
            "float32",
            "--no-overlap",
            "--title",
            "Mine",
            "--output",
            str(page),
            "--json",
            str(data),
        ]
        assert main([*command, *flags]) == 0
    told = capsys.readouterr()
    assert [row[:2] for row in rows(told.out)] == [["W1_4", "legato"], ["W1_4", other.url]]
    assert float(rows(told.out)[0][-1]) > 0
    assert "legato was ready" in told.out
    assert told.out.strip() in page.read_text()
    assert "## Mine\n\n" in page.read_text()
    assert "--dtype float32 --no-overlap" in page.read_text()
    assert [each["server"] for each in json.loads(data.read_text())["results"]] == ["legato", other.url]
    assert {body["model"] for body in other.bodies} == {"theirs"}
    assert "bench serve: W1_4, legato, 1 of 1\n" in told.err


def test_server_that_runs_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeOpenAI("running", [])
    with serving(server):
        assert (
            main(["bench", "serve", "--url", server.url, "--vocab", "500", "--works", "W2,W3", "--reps", "1"])
            == 0
        )
    told = capsys.readouterr()
    assert [row[:2] for row in rows(told.out)] == [["W2", server.url], ["W3", server.url]]
    assert "was ready" not in told.out
    assert all(max(body["prompt"]) < 500 for body in server.bodies)


def test_engine_in_process_is_measured(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", str(tiny_model), "--in-process", *QUICK]) == 0
    [row] = rows(capsys.readouterr().out)
    assert row[:2] == ["W1_4", "legato in process"]
    assert float(row[3]) > 0


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--works", "W1_4,W9"], "--works W1_4,W9: expected some of W1_1,W1_4,W1_16,W1_64,W2,W3,W4,W5"),
        (["--reps", "0"], "--reps 0: must be at least 1"),
        (["--vocab", "0"], "--vocab 0: must be at least 1"),
        (["--in-process", "--against", "http://b"], "--in-process and http://b"),
        (["--against-model", "theirs"], "--against-model theirs: give --against URL too"),
        (
            ["--url", "http://a", "--vocab", "9", "--dtype", "float32"],
            "--dtype is for a server that is started",
        ),
        (
            ["--url", "http://a"],
            "--url http://a: prompts are token ids that the server must know; give its MODEL",
        ),
        (["--url", "a:b"], "--url a:b: expected a URL like http://"),
        (["--against", "http://a:b"], "--against http://a:b: expected a URL like http://"),
        (["m", "--url", "ftp://a", "--vocab", "9"], "--url ftp://a: expected a URL like http://"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *flags]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--vocab", "9", "--url"], ["--vocab", "9", "--against-model", "theirs", "--against"]],
    ids=["url", "against"],
)
def test_url_where_nothing_answers_is_named(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeOpenAI("gone", [])
    with serving(server):
        url = server.url
    assert main(["bench", "serve", "--works", "W1_1", *flags, url]) == 2
    fault = f"{flags[-1]} {url}: nothing answers there (connection refused)"
    assert f"{fault}; start the server or correct the address" in capsys.readouterr().err
