"""Engines that meet a fault while they load their model: which of them are started again."""

import os
import signal
import time
from pathlib import Path

import pytest

from legato.core.config import EngineConfig
from legato.core.errors import NotReadyError
from legato.ipc.client import ProcessClient
from legato.ipc.engine_client import EngineStage
from legato.ipc.supervisor import EngineProcess, RestartBudget, start_engine


@pytest.mark.parametrize(
    ("fault", "reason", "num_engines"),
    [
        ("TypeError", r"tiny: the model could not be loaded \(TypeError: a planted fault\); see the log", 1),
        ("MemoryError", r"the engine process has ended \(exit code 1\)", 2),
    ],
)
def test_of_faults_while_a_model_loads_want_of_memory_alone_is_tried_again(
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fault: str,
    reason: str,
    num_engines: int,
) -> None:
    monkeypatch.setenv("LEGATO_TEST_FAULT", fault)
    started: list[EngineProcess] = []

    def spawn() -> EngineProcess:
        started.append(start_engine("tests.ipc.faulty_loading"))
        return started[-1]

    budget = RestartBudget(delays_s=[0.0])
    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=spawn, budget=budget)
    client.start()
    with pytest.raises(NotReadyError, match=reason):
        client.wait_ready(30)
    assert client.status.stage is EngineStage.FAILED
    assert len(started) == num_engines
    assert capfd.readouterr().err.count("Traceback") == num_engines
    client.close()


def test_a_fault_of_an_engine_that_replaces_another_is_tried_again(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_TEST_FAULT", "TypeError")
    modules = iter(["legato.engine", "tests.ipc.faulty_loading", "legato.engine"])
    started: list[EngineProcess] = []

    def spawn() -> EngineProcess:
        started.append(start_engine(next(modules)))
        return started[-1]

    budget = RestartBudget(delays_s=[0.0, 0.0])
    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=spawn, budget=budget)
    client.start()
    client.wait_ready(30)
    os.kill(started[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while len(started) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    client.wait_ready(30)
    assert client.status.stage is EngineStage.READY
    client.close()
