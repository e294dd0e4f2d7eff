"""Where a model's tokenizer.json is, and how one that was made is kept."""

from pathlib import Path

import pytest

import legato.modelfiles.tokenizer_file as module
from legato.modelfiles.fingerprint import weights_fingerprint
from legato.modelfiles.tokenizer_file import keep_tokenizer, tokenizer_file, tokenizer_parts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_folder_has_it_or_not(tmp_path: Path) -> None:
    assert tokenizer_file(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_file(tmp_path) == tmp_path / "tokenizer.json"


def test_another_one_may_be_named(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    assert tokenizer_file(tmp_path, other) == other
    assert tokenizer_file(tmp_path, tmp_path) is None


def test_that_of_other_files_of_a_folder_is_kept_by_what_they_are(tmp_path: Path, home: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    assert tokenizer_parts(tmp_path) == []
    (tmp_path / "merges.txt").write_text("")
    assert [file.name for file in tokenizer_parts(tmp_path)] == ["vocab.json", "merges.txt"]
    first = tokenizer_file(tmp_path)
    assert first is not None
    assert first.parent == home / "tokenizers"
    assert tokenizer_file(tmp_path) == first
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tokenizer_file(tmp_path) not in (None, first)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_file(tmp_path) == tmp_path / "tokenizer.json"


def test_that_of_a_gguf_file_is_kept_by_what_the_file_holds(tmp_path: Path, home: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF one")
    first = tokenizer_file(model)
    assert first is not None
    assert first.parent == home / "tokenizers"
    assert first.name.startswith("model-")
    assert tokenizer_file(model) == first
    model.write_bytes(b"GGUF two, longer")
    weights_fingerprint.cache_clear()
    assert tokenizer_file(model) not in (None, first)


def test_a_new_reading_of_gguf_makes_a_new_file(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    before = tokenizer_file(model)
    monkeypatch.setattr(module, "_READING", module._READING + 1)
    assert tokenizer_file(model) != before


def test_it_is_written_whole_or_not_at_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "tokenizers" / "a.json"
    keep_tokenizer(file, "{}")
    assert file.read_text() == "{}"
    monkeypatch.setattr(module.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        keep_tokenizer(file, "other")
    assert file.read_text() == "{}"
    assert list(file.parent.iterdir()) == [file]


def test_the_oldest_are_deleted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_FILES", 2)
    files = [home / f"{name}.json" for name in "abc"]
    for age, file in enumerate(files):
        keep_tokenizer(file, "{}")
        module.os.utime(file, (age, age))
    keep_tokenizer(files[0], "{}")
    assert sorted(home.glob("*.json")) == [files[0], files[2]]
