"""Where files are kept, by the variables that are set."""

from pathlib import Path

import pytest

from legato.modelfiles.folders import cache_folder, packed_folder


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"LEGATO_HOME": "/a"}, "/a"),
        ({"LEGATO_HOME": "", "XDG_CACHE_HOME": "/b"}, "/b/legato"),
        ({"LEGATO_HOME": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/legato"),
    ],
)
def test_cache_folder(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], folder: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LEGATO_PACKED_FOLDER")
    assert cache_folder() == Path(folder)
    assert packed_folder() == Path(folder) / "packed"
    monkeypatch.setenv("LEGATO_PACKED_FOLDER", "/elsewhere")
    assert packed_folder() == Path("/elsewhere")
