"""The README tells the truth: settings and their defaults, routes, commands, refusals; in both languages."""

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from legato.api.app import create_app
from legato.cli.main import COMMANDS
from legato.cli.options import flag_of
from legato.core.config import EngineConfig, ServerConfig
from tests.api.fake_service import FakeService
from tests.docs.references import READMES, ROOT, code_fences, heading_levels, table_rows

SETTINGS = [*fields(EngineConfig), *fields(ServerConfig)]

both_languages = pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.name)


def _read(readme: Path) -> str:
    return readme.read_text(encoding="utf-8")


def _shown_default(setting: "Field[Any]") -> str | None:
    """How the table shows a default; None where it is chosen later, which words must say."""
    if setting.default in (None, (), ""):
        return None
    if isinstance(setting.default, bool):
        return "`yes`" if setting.default else "`no`"
    return f"`{setting.default}`"


@both_languages
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_setting_stands_in_the_table_with_its_spellings_and_default(
    readme: Path, setting: "Field[Any]"
) -> None:
    spellings = {flag_of(setting.name), *setting.metadata.get("aliases", ())}
    rows = [row for row in table_rows(_read(readme)) if set(re.findall(r"`(-[\w-]+)`", row[0])) == spellings]
    assert len(rows) == 1
    default = _shown_default(setting)
    assert rows[0][1] == default if default else "`" not in rows[0][1]


@both_languages
def test_table_of_settings_names_no_flag_that_is_gone(readme: Path) -> None:
    known = {flag_of(setting.name) for setting in SETTINGS}
    named = [re.match(r"`(--[\w-]+)`", row[0]) for row in table_rows(_read(readme))]
    assert {match[1] for match in named if match} == known


@both_languages
def test_table_of_routes_is_the_apps(readme: Path) -> None:
    app = create_app({"model": FakeService()}, ServerConfig())
    served = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    } | {"GET /docs"}  # the page of the document does not stand in it
    named = {
        route for row in table_rows(_read(readme)) for route in re.findall(r"`((?:GET|POST) /[^`]*)`", row[0])
    }
    assert named == served


@both_languages
def test_every_command_is_explained(readme: Path) -> None:
    text = _read(readme)
    assert [command.name for command in COMMANDS if f"| `legato {command.name}" not in text] == []


@both_languages
def test_every_make_target_is_explained_and_every_named_one_exists(readme: Path) -> None:
    targets = set(
        re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(re.findall(r"`?make ([a-z][\w-]*)(?=`|$)", _read(readme), re.MULTILINE)) == targets


def test_both_languages_have_the_same_shape_and_the_same_code() -> None:
    english, korean = map(_read, READMES)
    assert heading_levels(english) == heading_levels(korean)
    assert code_fences(english) == code_fences(korean)
    assert [len(row) for row in table_rows(english)] == [len(row) for row in table_rows(korean)]


@pytest.mark.model
def test_python_example_runs_and_answers(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = [fence for fence in code_fences(_read(READMES[0])) if fence.startswith("```python")]
    exec("\n".join(example.splitlines()[1:-1]), {})
    lines = capsys.readouterr().out.splitlines()
    assert "Paris" in lines[-1]
    assert sum("completion_tokens=8" in line for line in lines) >= 1
