"""A `legato serve` of our own to measure, and the few calls that it takes."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from legato.core.errors import LegatoError

END_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 10
_READY = re.compile(r"ready on http://([\d.]+):(\d+)")


class BenchError(LegatoError):
    """A measurement could not be made, or what it found is wrong."""


class ServerProcess:
    """Serves on a free port of this machine while the `with` block runs.

    name   for error texts
    flags  of `legato serve`; LEGATO_* variables hold for what they leave out
    """

    def __init__(self, name: str, flags: Sequence[str]) -> None:
        self.name = name
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
        return self._call("POST", path, json.dumps(body).encode())

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        """The JSON of the answer. Raises BenchError when it is no success."""
        assert self._address is not None
        connection = http.client.HTTPConnection(*self._address)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"the {self.name} server broke off {method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise BenchError(
                f"the {self.name} server answered {method} {path} with {response.status}: {data!r}"
            )
        return json.loads(data)

    def _read_log(self) -> None:
        """Read to the end, so that the server never waits for us."""
        assert self._process.stdout is not None
        with self._process.stdout as log:
            for line in log:
                self._tail.append(line.rstrip())
                if found := _READY.search(line):
                    self._address = found[1], int(found[2])
                    self._is_settled.set()
        self._is_settled.set()
