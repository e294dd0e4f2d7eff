"""`legato serve` from start to end: the port first, a ready line, an end that is quick and says why."""

import asyncio
import http.client
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from legato.api.asgi import app_for
from legato.api.engine_service import EngineService
from legato.cli import serve
from legato.cli.main import main
from legato.cli.serving.http_server import HttpServer
from legato.cli.serving.listener import open_listener
from legato.core.config import EngineConfig, ServerConfig

END_LIMIT_S = 15.0  # on a busy machine; two seconds on one that is not
PATIENCE_S = 60.0


@dataclass
class Serving:
    """`legato serve` in a process; `log` is what it has written so far, on both of its outputs."""

    process: "subprocess.Popen[str]"
    log: str = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read the log up to a line with the pattern in it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in\n{self.log}")

    def connect(self) -> http.client.HTTPConnection:
        found = self.read_until(r"ready on http://([\d.]+):(\d+) \(tiny, [\d.]+ s\)")
        return http.client.HTTPConnection(found[1], int(found[2]), timeout=PATIENCE_S)

    def end(self, sig: int) -> float:
        """Send a signal to the whole group, as a terminal does; the seconds until the process has ended."""
        started = time.perf_counter()
        os.killpg(self.process.pid, sig)
        self.log += self.process.communicate(timeout=PATIENCE_S)[0]
        return time.perf_counter() - started


Start = Callable[..., Serving]


@pytest.fixture
def start(tiny_model: Path) -> Iterator[Start]:
    """Starts `legato serve` on a free port, with the tiny model unless told otherwise."""
    started: list[Serving] = []

    def start_one(model: Path = tiny_model, *flags: str) -> Serving:
        command = [sys.executable, "-m", "legato", "serve", str(model), "--port", "0", *flags]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )
        started.append(Serving(process))
        return started[-1]

    yield start_one
    for serving in started:
        serving.process.kill()
        serving.process.communicate()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pytest's own logging as it is."""
    monkeypatch.setattr(serve, "set_up_logging", lambda *_, **__: None)


@pytest.mark.usefixtures("quiet")
def test_taken_port_is_told_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with open_listener("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        assert main(["serve", "/nowhere", "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"legato: error: port {port} on 127.0.0.1 is taken")
    assert error.count("\n") == 1


@pytest.mark.usefixtures("quiet")
def test_missing_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/nowhere", "--port", "0"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("legato: error: no model '/nowhere'")
    assert error.count("\n") == 1


def test_print_config_ends_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/nowhere", "--print-config", "--api-key", "secret"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^--model +/nowhere +argument$", table, re.MULTILINE)
    assert re.search(r"^--api-key +\*\*\* +argument$", table, re.MULTILINE)


@pytest.mark.parametrize("content", [None, "# none yet\n"])
def test_lost_keys_are_one_line_and_start_no_server(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    assert main(["serve", "/nowhere", "--api-key-file", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"legato: error: the API key file {path} ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "keys", "is_warned"),
    [("0.0.0.0", (), True), ("0.0.0.0", ("key",), False), ("127.0.0.1", (), False)],
)
def test_open_address_without_key_is_warned_about(
    host: str, keys: tuple[str, ...], is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with open_listener(host, 0) as listener:
        serve.warn_if_open(listener, ServerConfig(host=host, api_key=keys))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * is_warned
    assert ("give --api-key KEY" in caplog.text) == is_warned


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_open_streams_with_a_reason(start: Start, tiny_model: Path, sig: int) -> None:
    # slow: few tokens lie between the engine and the client
    serving = start(tiny_model, "--backend", "reference", "--drain-timeout-s", "0")
    connection, idle = serving.connect(), None
    idle = http.client.HTTPConnection(connection.host, connection.port)
    idle.request("GET", "/health")
    assert json.loads(idle.getresponse().read())
    # so many answers that they run for as long as it takes
    body = {"prompt": ["hello"] * 200, "max_tokens": 450, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    stream = connection.getresponse()
    assert stream.readline().startswith(b'data: {"')

    with ThreadPoolExecutor(1) as reader:  # a client that does not read is cut off without a reason
        rest = reader.submit(stream.read)
        assert serving.end(sig) < END_LIMIT_S
        *_, error, done = rest.result().decode().split("\n\n")[:-1]
    idle.close()
    connection.close()
    assert serving.process.returncode == 0
    error = json.loads(error.removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == ("shutting_down", "the server is shutting down")
    assert done == "data: [DONE]"
    lines = [line for line in serving.log.splitlines() if " engine: " not in line]  # another process
    assert lines[-1].endswith(f"legato: end: {signal.Signals(sig).name}")
    assert "Traceback" not in serving.log


def test_signal_lets_what_runs_finish_and_refuses_what_is_new(start: Start, tiny_model: Path) -> None:
    serving = start(tiny_model, "--backend", "reference")
    connection = serving.connect()
    body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), headers)
    stream = connection.getresponse()
    assert stream.readline().startswith(b'data: {"')
    serving.process.terminate()
    other = http.client.HTTPConnection(connection.host, connection.port, timeout=PATIENCE_S)
    while True:  # until the signal has been taken
        other.request("POST", "/v1/completions", json.dumps(body | {"max_tokens": 1}), headers)
        refusal = other.getresponse()
        answer = json.loads(refusal.read())
        if refusal.status != 200:
            break
    assert (refusal.status, answer["error"]["code"]) == (503, "shutting_down")
    assert refusal.headers["retry-after"]
    other.request("GET", "/ready")
    assert json.loads(other.getresponse().read())["stage"] == "draining"
    events = stream.read().decode().split("\n\n")[:-1]
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert events[-1] == "data: [DONE]"
    other.close()
    connection.close()
    serving.log += serving.process.communicate(timeout=PATIENCE_S)[0]
    assert serving.process.returncode == 0
    assert "Traceback" not in serving.log


def test_signal_while_the_model_is_loaded_ends_cleanly(start: Start) -> None:
    serving = start()
    serving.read_until("parent pid")
    assert serving.end(signal.SIGINT) < END_LIMIT_S
    assert serving.process.returncode == 0
    assert "Traceback" not in serving.log


def test_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    app = app_for(EngineService(EngineConfig(model="/nowhere")), ServerConfig())
    server = HttpServer(app, lambda: None)
    server.handle_exit(signal.SIGINT, None)
    assert asyncio.run(server.on_tick(1)), "nothing runs that it could wait for"
    assert (server.end_reason, codes) == ("SIGINT", [])
    server.handle_exit(signal.SIGINT, None)
    assert codes == [130]


def test_model_that_can_never_be_loaded_ends_the_server(
    start: Start, tiny_model: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_model, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    serving = start(broken)
    log = serving.process.communicate(timeout=PATIENCE_S)[0]
    assert serving.process.returncode == 1
    assert "end: the model cannot be served" in log
    last = log.splitlines()[-1]
    assert last.startswith(f"legato: error: {weights}")
    assert "ERROR" not in log
    assert "Traceback" not in log


def test_model_that_its_header_forbids_starts_no_engine(start: Start, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]))
    log = start(cut).process.communicate(timeout=PATIENCE_S)[0]
    assert "engine pid" not in log
    assert log.count("in the middle of its header") == 1
    assert log.splitlines()[-1].startswith(f"legato: error: {cut} is not whole: it ends at byte 8")


def test_tokenizer_that_cannot_be_read_ends_the_one_engine(start: Start, tiny_model: Path) -> None:
    log = start(tiny_model, "--tokenizer", "/nowhere").process.communicate(timeout=PATIENCE_S)[0]
    assert log.count("start: parent pid") == 1
    assert "was ended by legato" in log
    assert "SIGKILL" not in log
    assert log.splitlines()[-1].startswith("legato: error: ")


def test_address_is_told_however_quiet_the_log_is(start: Start, tiny_model: Path) -> None:
    serving = start(tiny_model, "--log-level", "error")
    serving.connect().close()
    assert serving.log.startswith("ready on http://127.0.0.1:")


def test_json_log_has_an_object_a_line_of_both_processes(start: Start, tiny_model: Path) -> None:
    serving = start(tiny_model, "--log-format", "json", "--enable-log-requests")
    connection = serving.connect()
    connection.request("GET", "/v1/models", headers={"x-request-id": "my-call"})
    assert connection.getresponse().read()
    connection.close()
    serving.end(signal.SIGINT)
    lines = [json.loads(line) for line in serving.log.splitlines() if not line.startswith("ready on ")]
    assert {line["process"] for line in lines} == {"legato", "engine"}
    assert all({"time", "level", "process", "message"} <= line.keys() for line in lines)
    assert [line["request_id"] for line in lines if "/v1/models" in line["message"]] == ["my-call"]


def test_probes_and_requests_leave_no_line_by_default(start: Start) -> None:
    serving = start()
    connection = serving.connect()
    num_lines = serving.log.count("\n")
    for path in ("/health", "/metrics", "/v1/models"):
        connection.request("GET", path)
        assert connection.getresponse().read()
    connection.close()
    serving.end(signal.SIGINT)
    ends = ("legato: end: ", "engine: end: ", "was ended by legato")
    new_lines = serving.log.splitlines()[num_lines:]
    assert [line for line in new_lines if not any(end in line for end in ends)] == []
