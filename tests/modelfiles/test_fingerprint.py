"""Weights have a name that says which they are."""

import os
from pathlib import Path

from legato.modelfiles.fingerprint import weights_fingerprint, weights_identity


def write(folder: Path, data: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(data)
    return folder


def test_copies_have_one_name_and_other_weights_another(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    original, copy = write(tmp_path / "a", data), write(tmp_path / "b", data)
    longer, changed = write(tmp_path / "c", data + b"\0"), write(tmp_path / "d", b"\1" + data[1:])
    names = [weights_fingerprint(folder) for folder in (original, copy, longer, changed)]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_file_and_folder_of_it_have_one_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", b"weights")
    assert weights_fingerprint(folder) == weights_fingerprint(folder / "model.safetensors")


def test_identity_changes_with_the_content_and_with_the_time_of_writing(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", b"weights")
    before = weights_identity(folder)
    assert weights_identity(folder) == before
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert weights_identity(folder)["fingerprint"] == before["fingerprint"]
    assert weights_identity(folder) != before
    assert weights_identity(write(tmp_path / "b", b"others!")) != before
