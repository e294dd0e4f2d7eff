"""`legato models remove`: what was brought here is gone, and nothing else."""

import shutil
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.core.config import DEFAULT_MODEL
from legato.modelfiles import catalog


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of legato, with the default model and packed weights of two, and of the hub, with one model."""
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LEGATO_PACKED_FOLDER", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    target = next(iter(catalog.entries())).target
    (target.parent / ".parts/half").mkdir(parents=True)
    (target.parent / ".parts/half/piece").write_bytes(bytes(1_000_000))
    target.write_bytes(bytes(2_500_000))
    packed = tmp_path / "home/packed"
    packed.mkdir()
    (packed / f"{target.stem}-0123456789ab.packed").write_bytes(bytes(4_000_000))
    (packed / "abc-0123456789ab.packed").write_bytes(bytes(8_000_000))
    tokenizers = tmp_path / "home/tokenizers"
    tokenizers.mkdir()
    (tokenizers / f"{target.stem}-0123456789ab.json").write_bytes(bytes(500_000))
    (tokenizers / "other-0123456789ab.json").write_bytes(bytes(500_000))
    blob = tmp_path / "hub/models--org--name/blobs/1"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(16_000_000))
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    return tmp_path


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_packaged_model_goes_with_its_parts_and_what_was_made_of_it(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "remove", DEFAULT_MODEL]) == 0
    assert capsys.readouterr().err == f"removed {DEFAULT_MODEL}: 8 MB\n"
    assert files_of(caches / "home") == {".lock", "abc-0123456789ab.packed", "other-0123456789ab.json"}
    assert files_of(caches / "hub") == {"1", "model.safetensors"}

    assert main(["models", "remove", DEFAULT_MODEL]) == 1
    assert "is not on this machine: there is nothing to remove" in capsys.readouterr().err


def test_hub_model_goes_from_the_hubs_cache(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "remove", "org/name"]) == 0
    assert capsys.readouterr().err == "removed org/name: 24 MB\n"
    assert files_of(caches / "hub") == set()
    assert "abc-0123456789ab.packed" not in files_of(caches / "home")


def test_model_of_ones_own_is_not_touched(
    caches: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "remove", str(tiny_model)]) == 1
    assert "legato did not bring it" in capsys.readouterr().err
    assert (tiny_model / "config.json").is_file()


def own_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / "thesis.gguf").write_bytes(b"mine")
    return folder / "thesis.gguf"


def test_file_of_ones_own_beside_a_packaged_model_stays(caches: Path) -> None:
    folder = catalog.entries()[0].target.parent
    mine = folder / "thesis.gguf"
    mine.write_bytes(b"mine")
    (folder / "LICENSE.txt").write_text("a paper of its package")
    (folder / "LICENSES").mkdir()
    shutil.copy(mine, folder / "LICENSES/my.txt")
    (folder / "elsewhere").symlink_to(own_file(caches / "mine").parent)
    assert main(["models", "remove", DEFAULT_MODEL]) == 0
    assert files_of(folder) == {".lock", "thesis.gguf", "my.txt"}
    assert (caches / "mine/thesis.gguf").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("model", "link"),
    [(DEFAULT_MODEL, f"home/models/{DEFAULT_MODEL}"), ("org/name", "hub/models--org--name")],
)
def test_what_a_linked_folder_leads_to_is_not_touched(
    caches: Path, capsys: pytest.CaptureFixture[str], model: str, link: str
) -> None:
    mine, folder = own_file(caches / "mine"), caches / link
    shutil.rmtree(folder)
    folder.symlink_to(mine.parent)
    assert main(["models", "remove", model]) == 1
    assert f"{folder} is a link to {mine.parent}, which may hold files" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"
    assert folder.is_symlink()


@pytest.mark.parametrize(
    ("model", "link"),
    [(DEFAULT_MODEL, f"home/models/{DEFAULT_MODEL}"), ("org/name", "hub/models--org--name")],
)
def test_link_that_leads_nowhere_goes(caches: Path, model: str, link: str) -> None:
    shutil.rmtree(caches / link)
    (caches / link).symlink_to(caches / "nowhere")
    assert main(["models", "remove", model]) == 0
    assert not (caches / link).is_symlink()


def test_linked_files_of_a_packaged_model_go_as_links(caches: Path) -> None:
    mine, target = own_file(caches / "mine"), catalog.entries()[0].target
    target.unlink()
    target.symlink_to(mine)
    shutil.rmtree(target.parent / ".parts")
    (target.parent / ".parts").symlink_to(mine.parent)
    assert main(["models", "remove", DEFAULT_MODEL]) == 0
    assert files_of(target.parent) == {".lock"}
    assert mine.read_bytes() == b"mine"
