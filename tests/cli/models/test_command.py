"""`legato models`: what is known, what is here, and where."""

from pathlib import Path

import pytest

from legato.cli.main import main
from legato.core.config import DEFAULT_MODEL
from legato.modelfiles import catalog


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path))
    return tmp_path


def test_where_of_a_model_that_is_not_here_tells_how_to_bring_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "where", DEFAULT_MODEL]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"legato models pull {DEFAULT_MODEL}" in told.err


def test_where_prints_the_path_alone(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "where", str(tiny_model)]) == 0
    assert capsys.readouterr().out == f"{tiny_model}\n"


def test_pull_reports_beside_the_path(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pull(name: str, *, revision: str | None, report: catalog.Report) -> catalog.ModelFiles:
        report(f"downloading {name} at {revision}")
        return catalog.ModelFiles(name, tiny_model)

    monkeypatch.setattr(catalog, "pull", pull)
    assert main(["models", "pull", "org/name", "--revision", "v2"]) == 0
    assert capsys.readouterr() == (f"{tiny_model}\n", "downloading org/name at v2\n")
