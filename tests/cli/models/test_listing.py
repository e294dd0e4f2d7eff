"""`legato models list`: every model in a line that fits, with what it takes and whether it is here."""

import json
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.core.config import DEFAULT_MODEL
from legato.modelfiles import catalog
from tests.model_builders import TINY_LLAMA, write_json


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of legato and of the hub, empty."""
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_in_hub_cache(hub: Path, name: str, num_bytes: int) -> None:
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    write_json(snapshot / "config.json", TINY_LLAMA)
    (snapshot / "model.safetensors").write_bytes(bytes(num_bytes))


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["models", "list"]) == 0
    return capsys.readouterr().out.splitlines()


def test_columns_fit_and_tell_what_a_model_takes(capsys: pytest.CaptureFixture[str]) -> None:
    head, first, gemma, *others = listed(capsys)
    assert max(map(len, (head, first, gemma, *others))) <= 100
    assert head.split() == ["NAME", "HERE", "DISK", "MEMORY", "LICENCE", "FROM"]
    assert first.split() == [DEFAULT_MODEL, "no", "98", "MB", "1.4", "GB", "Apache-2.0", "package", "index"]
    assert gemma.split()[:6] == ["gemma-3-270m", "no", "253", "MB", "1.6", "GB"]
    assert "Gemma Terms of Use" in gemma
    assert "gemma-3-270m: a base model: it completes texts and does not chat" in others
    assert any("K/V pool of 1.1 GB" in line and line.startswith("MEMORY is") for line in others)


def test_what_is_here_is_told_wherever_it_lies(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = next(iter(catalog.entries()))
    entry.target.parent.mkdir(parents=True)
    with entry.target.open("wb") as file:
        file.truncate(entry.source.num_bytes)
    put_in_hub_cache(caches / "hub", "facebook/opt-125m", 2_000_000)
    put_in_hub_cache(caches / "hub", "org/unknown", 3_000_000)
    put_in_hub_cache(caches / "hub", "org/half", 1)
    (caches / "hub/models--org--half/snapshots/abc/model.safetensors").unlink()

    lines = listed(capsys)
    here = {line.split()[0]: line.split()[1:4] for line in lines[1:8]}
    assert here[DEFAULT_MODEL] == ["yes", "98", "MB"]
    assert here["opt-125m"] == ["yes", "2", "MB"]
    assert here["qwen3-0.6b"][0] == "no"
    assert lines[-4:-1] == ["In the Hugging Face cache, too:", "", "NAME         DISK  MEMORY"]
    assert lines[-1] == "org/unknown  3 MB  1.3 GB"


def test_json_has_sizes_in_bytes(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_in_hub_cache(caches / "hub", "org/unknown", 3_000_000)
    assert main(["models", "list", "--json"]) == 0
    first, *_, last = json.loads(capsys.readouterr().out)
    assert first == {
        "name": DEFAULT_MODEL,
        "is_here": False,
        "source": "package index",
        "disk_bytes": 98_362_432,
        "memory_bytes": 98_362_432 + 2**30 + 250_000_000,
        "licence": "Apache-2.0",
        "licence_url": "https://www.apache.org/licenses/LICENSE-2.0",
        "note": None,
    }
    assert (last["name"], last["is_here"], last["disk_bytes"]) == ("org/unknown", True, 3_000_000)
