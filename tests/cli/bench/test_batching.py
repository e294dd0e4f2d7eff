"""`legato bench batching` with real servers, small."""

import re
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.core.config import DEFAULT_MODEL


@pytest.mark.parametrize("flags", [["--num-prompts", "4", "0"], ["--repeats", "0"]])
def test_numbers_below_one_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "batching", *flags]) == 2
    assert f"{flags[0]} 0: must be at least 1" in capsys.readouterr().err


def test_both_policies_are_measured_and_written_down(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    command = ["bench", "batching", "--model", str(tiny_model), "--num-prompts", "4", "6"]
    assert main([*command, "--max-tokens", "5", "--repeats", "2", "--output", str(page)]) == 0
    told = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.out.splitlines()[2:]]
    assert [(row[0], row[6]) for row in rows] == [("4", "1"), ("6", "2")]
    assert told.out in page.read_text()
    assert "bench batching: 4 prompts, static; 40 of 40 answers to go\n" in told.err
    assert re.search(
        r"bench batching: 6 prompts, continuous; 12 of 40 answers to go, about \d+ s\n", told.err
    )


@pytest.mark.model
@pytest.mark.slow
def test_default_model_gives_the_same_texts_by_both_policies(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "batching", "--model", DEFAULT_MODEL, "--num-prompts", "1", "4", "6"]
    assert main([*command, "--max-tokens", "12"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
