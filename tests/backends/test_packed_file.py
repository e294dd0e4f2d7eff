"""A file of packed weights gives back what was written, or says why it cannot be used."""

from pathlib import Path

import numpy as np
import pytest

from legato.backends.packed_file import PackedArray, UnusableError, map_packed_file, write_packed_file

IDENTITY = {"model": {"files": [[98, 1]]}, "packing": {"isa": "avx2"}}
ARRAYS = {
    "a": PackedArray("q4", (3, 64), np.arange(100, dtype=np.uint8)),
    "b": PackedArray("vector", (2,), np.array([1.5, -2.0], np.float32).view(np.uint8)),
    "c": PackedArray("f32", (1, 1), np.full(64, 7, np.uint8)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_packed_file(tmp_path / "x.packed", IDENTITY, ARRAYS)
    return tmp_path / "x.packed"


def test_arrays_are_mapped_as_they_were_written(path: Path) -> None:
    found = map_packed_file(path, IDENTITY)
    assert list(found) == list(ARRAYS)
    for name, array in found.items():
        assert (array.format, array.shape) == (ARRAYS[name].format, ARRAYS[name].shape)
        assert array.data.tobytes() == ARRAYS[name].data.tobytes()
        assert array.data.ctypes.data % 64 == 0
        assert not array.data.flags.writeable


def test_mapped_arrays_outlive_the_name_of_their_file(path: Path) -> None:
    found = map_packed_file(path, IDENTITY)
    write_packed_file(path.with_name("y"), IDENTITY, {"a": ARRAYS["c"]})
    path.with_name("y").replace(path)
    assert found["a"].data.tolist() == list(range(100))
    assert map_packed_file(path, IDENTITY)["a"].data.tolist() == [7] * 64


@pytest.mark.parametrize("kept_bytes", [0, 7, 31, 32, 200, -1])
def test_file_that_is_cut_off_is_not_used(path: Path, kept_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(UnusableError):
        map_packed_file(path, IDENTITY)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"GGUF" + data[4:], "no file of packed weights"),
        (lambda data: data[:8] + b"\xff" * 8 + data[16:], "header is damaged"),  # the length of the header
        (lambda data: data[:40] + b"?" + data[41:], "header is damaged"),
        (lambda data: data + b"\0", "not whole"),
        (lambda data: data[:-1] + b"\x06", "its c is damaged"),
        (lambda data: b"", "no file of packed weights"),
    ],
)
def test_file_that_is_damaged_says_so(path: Path, change: object, reason: str) -> None:
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UnusableError, match=reason):
        map_packed_file(path, IDENTITY)


def test_file_of_another_identity_is_not_used(path: Path) -> None:
    with pytest.raises(UnusableError, match="made from other files or by another build"):
        map_packed_file(path, IDENTITY | {"packing": {"isa": "scalar"}})
