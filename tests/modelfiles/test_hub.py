"""Models of the hub: used from the cache where they are whole, else brought; what is told of either."""

import fcntl
import hashlib
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from legato.core.errors import ModelError
from legato.modelfiles import catalog, hub
from tests.model_builders import TINY_LLAMA, safetensors_bytes, write_json


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one, off the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)


def make_snapshot(folder: Path, **files: bytes) -> Path:
    """A hub model in the local cache, as huggingface_hub lays it out."""
    repo = folder / "hub/models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text("0" * 40)
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    write_json(snapshot / "config.json", TINY_LLAMA)
    for name, data in files.items():
        (snapshot / name.replace("__", ".")).write_bytes(data)
    return snapshot


def test_hub_model_in_the_local_cache_needs_no_network(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path, model__safetensors=safetensors_bytes({}))
    write_json(snapshot / "generation_config.json", {"top_k": 5})
    assert catalog.resolve("org/name") == catalog.ModelFiles("org/name", snapshot, {"top_k": 5})
    assert catalog.where("org/name") == snapshot


def test_hub_model_has_a_short_name(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path, model__safetensors=safetensors_bytes({}))
    (tmp_path / "hub/models--org--name").rename(tmp_path / "hub/models--facebook--opt-125m")
    snapshot = tmp_path / "hub/models--facebook--opt-125m/snapshots" / snapshot.name
    assert catalog.resolve("opt-125m") == catalog.ModelFiles("opt-125m", snapshot)
    assert catalog.where("opt-125m") == snapshot
    told = r"model Qwen/Qwen3-0\.6B is not in the Hugging Face cache .*legato models pull qwen3-0\.6b$"
    with pytest.raises(ModelError, match=told):
        catalog.resolve("qwen3-0.6b")


def test_hub_files_are_compared_with_the_hashes_that_name_them(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path)
    blobs = tmp_path / "hub/models--org--name/blobs"
    blobs.mkdir()
    weights, settings = safetensors_bytes({}), b"{}"
    for name, data, digest in (
        ("model.safetensors", weights, hashlib.sha256(weights).hexdigest()),
        ("generation_config.json", settings, "9e26dfeeb6e641a33dae4961196235bdb965b21b"),
    ):
        (blobs / digest).write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    files = catalog.resolve("org/name")
    assert hub.verify(snapshot) == 2
    assert catalog.verify("org/name", files)

    (blobs / "9e26dfeeb6e641a33dae4961196235bdb965b21b").write_bytes(b"[]")
    with pytest.raises(ModelError, match=r"generation_config\.json is damaged.*models remove org/name"):
        catalog.verify("org/name", files)


def let_hub_have(files: set[str], snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the hub's client: one that brings, of these files, those that are asked for."""

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool = False, **_: Any) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        snapshot.mkdir(parents=True)
        for file in files:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (snapshot / file).write_text("{}")
        return str(snapshot)

    siblings = [SimpleNamespace(rfilename=file) for file in files]
    answer = SimpleNamespace(sha=snapshot.name, siblings=siblings)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: answer)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)


@pytest.mark.parametrize("weights", [{"pytorch_model.bin"}, {"pytorch_model.bin", "model.safetensors"}])
def test_hub_model_comes_with_its_bin_files_only_where_it_has_no_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: set[str]
) -> None:
    snapshot = tmp_path / "hub/models--org--name/snapshots" / ("0" * 40)
    settings = {"config.json", "vocab.json", "merges.txt"}
    let_hub_have(settings | weights | {"tf_model.h5", "training_args.bin"}, snapshot, monkeypatch)
    assert catalog.resolve("org/name").path == snapshot
    assert {file.name for file in snapshot.iterdir()} == settings | {min(weights)}


def test_hub_model_that_cannot_be_loaded_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "hub/models--org--name"
    let_hub_have({"config.json", "name.gguf"}, repository / "snapshots" / ("0" * 40), monkeypatch)
    with pytest.raises(ModelError, match=r"org/name on the Hugging Face hub has no config\.json with"):
        catalog.resolve("org/name")
    assert not repository.exists()


def test_parts_of_whole_files_are_deleted_unless_another_process_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, locks = tmp_path / "hub/models--org--name", tmp_path / "hub/.locks/models--org--name"
    blobs = repository / "blobs"
    for folder in (blobs, locks):
        folder.mkdir(parents=True)
    for name in ("whole", "free", "held"):
        (blobs / name).touch()
        (blobs / f"{name}.0a.incomplete").touch()
    (blobs / "absent.incomplete").touch()
    (locks / "free.lock").touch()
    files = {"config.json", "model.safetensors", "tokenizer.json"}
    let_hub_have(files, repository / "snapshots" / ("0" * 40), monkeypatch)
    with (locks / "held.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        catalog.resolve("org/name")
    parts = {part.name for part in blobs.glob("*.incomplete")}
    assert parts == {"absent.incomplete", "held.0a.incomplete"}


@pytest.mark.parametrize(
    "state",
    [
        "absent",
        "no weights",
        "a shard is missing",
        "a link leads nowhere",
        "our download was cut off",
        "another's download was cut off",
    ],
)
def test_hub_model_that_is_not_whole_is_not_used(tmp_path: Path, state: str) -> None:
    repository = tmp_path / "hub/models--org--name"
    if state == "no weights":
        make_snapshot(tmp_path)
    elif state == "a shard is missing":
        snapshot = make_snapshot(tmp_path)
        write_json(snapshot / "model.safetensors.index.json", {"weight_map": {"a": "model-1.safetensors"}})
    elif state != "absent":
        snapshot = make_snapshot(tmp_path, model__safetensors=safetensors_bytes({}))
        assert catalog.where("org/name") == snapshot
    if state == "a link leads nowhere":
        (snapshot / "tokenizer.json").symlink_to("../../blobs/abc")
    if state == "our download was cut off":
        (repository / f".legato-unfinished-{snapshot.name}").touch()
    if state == "another's download was cut off":
        (repository / "blobs").mkdir()
        (repository / "blobs/abc.incomplete").touch()

    assert catalog.where("org/name") is None
    with pytest.raises(ModelError, match=r"org/name"):
        catalog.resolve("org/name")


def test_part_of_another_file_makes_no_hub_model_useless(tmp_path: Path) -> None:
    files = {"model__safetensors": safetensors_bytes({}), "tokenizer__json": b"{}"}
    snapshot = make_snapshot(tmp_path, **files)
    (snapshot / "tf_model.h5").symlink_to("../../blobs/deleted-to-save-room")
    blobs = tmp_path / "hub/models--org--name/blobs"
    blobs.mkdir()
    (blobs / "abc.1.incomplete").touch()
    assert catalog.where("org/name") == snapshot
    assert hub.verify(snapshot) == 0


def test_hub_file_that_several_models_share_is_compared_by_the_hash_of_its_blob(tmp_path: Path) -> None:
    """The shared one has a name that huggingface_hub's own store gives it."""
    snapshot = make_snapshot(tmp_path)
    weights, blobs = safetensors_bytes({}), tmp_path / "hub/models--org--name/blobs"
    digest, shared = hashlib.sha256(weights).hexdigest(), tmp_path / "hub/blobs/ab" / ("ab" * 32)
    blobs.mkdir()
    shared.parent.mkdir(parents=True)
    shared.write_bytes(weights)
    (blobs / digest).symlink_to(shared)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{digest}")
    assert hub.verify(snapshot) == 1


def test_hub_that_cannot_be_asked_is_told_in_one_paragraph() -> None:
    with pytest.raises(ModelError) as failure:
        catalog.resolve("org/name")
    assert str(failure.value) == (
        "model org/name is not in the Hugging Face cache and cannot be downloaded: HF_HUB_OFFLINE forbids it:"
        " unset that. After that, this brings it: legato models pull org/name"
    )


def test_absent_hub_model_says_which_command_brings_it() -> None:
    with pytest.raises(ModelError, match=r"legato models pull org/name --revision v2"):
        catalog.resolve("org/name", revision="v2")
