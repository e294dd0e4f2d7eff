"""Documents name what exists: files, functions, settings, dependencies, other documents."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.references import DOCUMENTS, ROOT, anchors, defined_names, links, references


def _name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_name_of_code_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [
        f"{path}: {name}"
        for path, name in references(text)
        if not (ROOT / path).exists() or (name and name not in defined_names(ROOT / path))
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_path_of_code_is_written_in_the_form_that_is_checked(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    spans = set(re.findall(r"`(legato/[^`]*)`", text))
    assert spans - {path + (f": {name}" if name else "") for path, name in references(text)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for path, anchor in links(document.read_text(encoding="utf-8")):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8"))


def test_checking_finds_a_name_that_does_not_exist() -> None:
    [(path, name)] = references("by `legato/engine/loop.py: walk`")
    assert name not in defined_names(ROOT / path)
    assert "run" in defined_names(ROOT / path)


def test_the_path_of_a_request_passes_every_folder_of_the_way() -> None:
    text = (ROOT / "docs/request_path.md").read_text(encoding="utf-8")
    folders = {path.split("/")[1] for path, _ in references(text)}
    assert folders >= {
        "api", "frontend", "tokenization", "ipc", "engine", "core", "scheduler", "kvcache", "executor",
        "models", "backends", "sampling",
    }  # fmt: skip


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[=<>]", requirement)[0] for requirement in wanted}
    text = (ROOT / "docs/decisions/dependencies.md").read_text(encoding="utf-8")
    assert {name for name in names if f"\n| `{name}` |" not in text} == set()
