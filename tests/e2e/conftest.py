"""Real servers: uvicorn in a process of its own, the engine in another, a socket in between."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Server:
    """A server that runs; `log` holds its standard error."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, Any]:
        return self._answer(urllib.request.Request(self.url + path))

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
        return self._answer(urllib.request.Request(self.url + path, data, headers))

    def _answer(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until(condition: Callable[[], Any], timeout_s: float = 30) -> None:
    """Poll another process. Fails when the condition does not become true in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def start_server(
    folder: Path,
    model: Path,
    *,
    app: str | None = "legato.api.asgi:app",
    log: Path | None = None,
    answers: str = "/ready",
    **settings: object,
) -> Server:
    """Start uvicorn on the app, as the lesson does, or `legato serve`; it answers that path with 200 then."""
    port = free_port()
    log = log or folder / f"server-{port}.log"
    environment = os.environ | {"LEGATO_MODEL": str(model)}
    environment |= {f"LEGATO_{name.upper()}": str(value) for name, value in settings.items()}
    with log.open("wb") as stream:
        command = [
            sys.executable,
            "-m",
            *(["uvicorn", app] if app else ["legato", "serve"]),
            "--port",
            str(port),
        ]
        process = subprocess.Popen(command, env=environment, stderr=stream, stdout=stream)
    server = Server(process, port, log)
    wait_until(lambda: _says_yes(server, answers))
    return server


def _says_yes(server: Server, path: str) -> bool:
    assert server.process.poll() is None, server.log.read_text()
    try:
        return server.get(path)[0] == 200
    except OSError:
        return False


def end_server(server: Server) -> None:
    server.process.terminate()
    server.process.wait(timeout=20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server of the tiny model, shared by a module's tests."""
    server = start_server(tmp_path_factory.mktemp("server"), tiny_model, served_model_name="tiny,alias")
    yield server
    end_server(server)
