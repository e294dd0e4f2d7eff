"""Packed weights on disk: found again when nothing has changed, never in the way when something is wrong."""

import errno
import fcntl
import logging
import os
from pathlib import Path

import numpy as np
import pytest

import legato.backends.packed_cache as packed_cache
from legato.backends.packed_cache import KEPT_FILES, PackedCache
from legato.backends.packed_file import PackedArray

PACKING = {"isa": "avx2", "float_weights": "bf16", "build": "1"}
ARRAYS = {"a": PackedArray("f32", (1, 1), np.full(64, 7, np.uint8))}


def cache(folder: Path, model: str = "model.gguf", source: str = "content") -> PackedCache:
    return PackedCache(folder / "packed", folder / model, {"fingerprint": source})


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "packed").iterdir()} - {".lock"}


def test_what_was_stored_is_found_by_another_process_of_the_same_kind(tmp_path: Path) -> None:
    assert cache(tmp_path).load(PACKING) is None
    cache(tmp_path).store(PACKING, ARRAYS)
    found = cache(tmp_path).load(PACKING)
    assert found is not None
    assert found["a"].data.tolist() == [7] * 64
    assert names(tmp_path) == {cache(tmp_path).path(PACKING).name}


@pytest.mark.parametrize(
    ("source", "packing"),
    [
        ("changed content", PACKING),
        ("content", PACKING | {"build": "2"}),
        ("content", PACKING | {"isa": "scalar"}),
        ("content", PACKING | {"float_weights": "f32"}),
        ("content", PACKING | {"new_option": "x"}),
    ],
)
def test_other_weights_are_never_taken_for_these(
    tmp_path: Path, source: str, packing: dict[str, str]
) -> None:
    cache(tmp_path).store(PACKING, ARRAYS)
    assert cache(tmp_path, source=source).load(packing) is None


def test_weights_that_were_quantised_on_load_are_kept_beside_those_that_were_not(tmp_path: Path) -> None:
    for quantization in ("none", "int8", "int4"):
        each = PackedCache(tmp_path / "packed", tmp_path / "m.gguf", {}, quantization=quantization)
        assert each.load(PACKING) is None
        each.store(PACKING, ARRAYS)
        assert each.load(PACKING)
    assert len(names(tmp_path)) == 3


def test_changed_model_and_new_build_replace_what_was_kept_of_it(tmp_path: Path) -> None:
    cache(tmp_path).store(PACKING, ARRAYS)
    cache(tmp_path, source="changed content").store(PACKING, ARRAYS)
    cache(tmp_path).store(PACKING | {"build": "2"}, ARRAYS)
    assert len(names(tmp_path)) == 1
    cache(tmp_path).store(PACKING | {"isa": "scalar"}, ARRAYS)
    assert len(names(tmp_path)) == 2


def test_only_the_last_used_files_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_FILES):
        each = cache(tmp_path, f"model{number}.gguf")
        each.store(PACKING, ARRAYS)
        os.utime(each.path(PACKING), (number, number))
    first, second = (cache(tmp_path, f"model{number}.gguf") for number in (0, 1))
    assert first.load(PACKING)  # now it is the last one used
    cache(tmp_path, "one more.gguf").store(PACKING, ARRAYS)
    assert len(names(tmp_path)) == KEPT_FILES
    assert first.load(PACKING)
    assert second.load(PACKING) is None


def test_damaged_file_is_a_line_in_the_log_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = cache(tmp_path).path(PACKING)
    cache(tmp_path).store(PACKING, ARRAYS)
    path.write_bytes(path.read_bytes()[:-1])
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert cache(tmp_path).load(PACKING) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"packed weights in {path} are not used: it is not whole"
    ]
    cache(tmp_path).store(PACKING, ARRAYS)
    assert cache(tmp_path).load(PACKING)


def test_folder_that_cannot_be_made_is_a_warning_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "packed").write_text("a file where the folder should be")
    assert cache(tmp_path).load(PACKING) is None
    cache(tmp_path).store(PACKING, ARRAYS)
    warning = caplog.records[-1].getMessage()
    assert f"cannot be kept in {tmp_path / 'packed'}" in warning
    assert warning.endswith("or give --no-packed-cache")


def test_full_disk_leaves_nothing_and_keeps_what_was_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache(tmp_path).store(PACKING, ARRAYS)

    def fill_up(path: Path, *_: object) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(packed_cache, "write_packed_file", fill_up)
    cache(tmp_path).store(PACKING, ARRAYS)
    assert "No space left on device" in caplog.records[-1].getMessage()
    assert len(names(tmp_path)) == 1
    assert cache(tmp_path).load(PACKING)


def test_half_written_file_of_a_dead_process_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / ".partial-1").write_bytes(b"half of it")
    assert cache(tmp_path).load(PACKING) is None
    cache(tmp_path).store(PACKING, ARRAYS)
    assert names(tmp_path) == {cache(tmp_path).path(PACKING).name}


def test_who_comes_second_leaves_the_writing_to_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "packed").mkdir()
    with (tmp_path / "packed" / ".lock").open("w") as lock, caplog.at_level(logging.INFO):
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache(tmp_path).store(PACKING, ARRAYS)
    assert "another process writes" in caplog.records[-1].getMessage()
    assert names(tmp_path) == set()
