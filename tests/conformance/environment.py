"""A client in a virtual environment of its own, installed and run as its users do it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

RUN_TIMEOUT_S = 1800.0
SHOWN_CHARS = 4000  # of a client that failed


class ConformanceError(Exception):
    """A client could not be installed, has failed, or counts otherwise than the server."""


class Environment:
    """A folder that holds a client, its home, and what it writes.

    requirements  for pip, group after group: torch must be there before what would bring another build of it
    """

    def __init__(self, folder: Path, requirements: Sequence[Sequence[str]]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self._requirements = requirements

    def install(self) -> float | None:
        """The seconds that it took; None when everything is there already."""
        stamp, wanted = self.folder / "installed.json", json.dumps(self._requirements)
        if stamp.is_file() and stamp.read_text() == wanted:
            return None
        started = time.perf_counter()
        python = str(self.folder / "venv/bin/python")
        _run([sys.executable, "-m", "venv", "--clear", str(self.folder / "venv")], "venv")
        uv = shutil.which("uv")  # much faster, where it is there
        install = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
        for group in self._requirements:
            _run([*install, "-q", *group], "pip")
        stamp.write_text(wanted)
        return time.perf_counter() - started

    def run(self, program: str, *argv: object) -> None:
        """Run a program of the environment. Raises ConformanceError with the end of what it wrote."""
        self.home.mkdir(exist_ok=True)
        # without the network: all that a client may read lies on this machine
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        environ = {**os.environ, **offline, "HOME": str(self.home), "HF_HOME": str(self.home / "hf")}
        for name in ("PYTHONPATH", "OPENAI_API_KEY"):
            environ.pop(name, None)
        _run([str(self.folder / "venv/bin" / program), *map(str, argv)], program, environ)

    def output(self, name: str) -> Path:
        """Where a run may write; nothing is there from an earlier one."""
        path = self.folder / "out" / name
        path.parent.mkdir(exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return path


def _run(command: list[str], name: str, environ: dict[str, str] | None = None) -> None:
    try:
        result = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=RUN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ConformanceError(f"{name} did not end within {RUN_TIMEOUT_S:.0f} s") from error
    if result.returncode != 0:
        text = result.stdout.decode(errors="replace")[-SHOWN_CHARS:]
        raise ConformanceError(f"{name} ended with {result.returncode}:\n{text}")
