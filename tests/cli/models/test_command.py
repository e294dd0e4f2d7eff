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


@pytest.mark.parametrize("model", ["m" * 300, ""])
@pytest.mark.parametrize("command", ["models where", "models remove", "generate Hello --model", "serve"])
def test_name_that_no_model_can_have_is_one_line(
    command: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_PORT", "0")
    assert main([*command.split(), model]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "name is empty" in told.err or "File name too long" in told.err


@pytest.mark.parametrize("command", ["generate Hello", "batch"])
def test_several_models_are_told_to_be_for_serve(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").touch()
    monkeypatch.setenv("LEGATO_MODEL", "a,b")
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    assert main([*command.split(), *(files if command == "batch" else [])]) == 1
    assert "no model 'a,b': legato serve alone takes several" in capsys.readouterr().err


def test_folder_of_models_that_cannot_be_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_HOME", "/" + "h" * 300)
    for action in (["list"], ["pull", DEFAULT_MODEL], ["remove", DEFAULT_MODEL]):
        assert main(["models", *action]) == 1
        assert "File name too long" in capsys.readouterr().err


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
