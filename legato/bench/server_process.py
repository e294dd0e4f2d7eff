"""A `legato serve` of our own to measure, and the few calls that it takes."""

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from legato.bench.endpoint import BenchError
from legato.bench.http_call import call
from legato.bench.process_memory import peak_rss_bytes

END_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 10
_READY = re.compile(r"ready on http://([\d.]+):(\d+)")


class ServerProcess:
    """Serves on a free port of this machine while the `with` block runs.

    name     for error texts
    flags    of `legato serve`; LEGATO_* variables hold for what they leave out
    start_s  seconds from the start of its process until it was ready
    """

    def __init__(self, name: str, flags: Sequence[str]) -> None:
        self.name = name
        self.start_s = 0.0
        self._command = [
            sys.executable,
            "-m",
            "legato",
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            *flags,
        ]
        self._tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._address: tuple[str, int] | None = None
        self._is_settled = threading.Event()  # it is ready, or has ended

    def __enter__(self) -> "ServerProcess":
        """Raises BenchError with the end of the server's log when it does not start."""
        environ = {name: value for name, value in os.environ.items() if name != "LEGATO_API_KEY"}
        self._started_s = time.perf_counter()
        self._process = subprocess.Popen(
            [*self._command, "--log-level", "info"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            self._is_settled.wait()
            if self._address is None:
                raise BenchError("\n".join([f"the {self.name} server did not start:", *self._tail]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return call(self.name, self._ready_address, "POST", path, body)

    def get(self, path: str) -> Any:
        return call(self.name, self._ready_address, "GET", path)

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self._ready_address)

    def peak_rss_bytes(self) -> int | None:
        """The most memory that each of its processes has had, added up; None where the system hides it."""
        return peak_rss_bytes(self._process.pid)

    @property
    def _ready_address(self) -> tuple[str, int]:
        assert self._address is not None
        return self._address

    def _read_log(self) -> None:
        """Read to the end, so that the server never waits for us."""
        assert self._process.stdout is not None
        with self._process.stdout as log:
            for line in log:
                self._tail.append(line.rstrip())
                if found := _READY.search(line):
                    self._address = found[1], int(found[2])
                    self.start_s = time.perf_counter() - self._started_s
                    self._is_settled.set()
        self._is_settled.set()
