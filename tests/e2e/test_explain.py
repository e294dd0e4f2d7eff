"""A busy server whose engine is killed: all time is explained, and all decisions are made again."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from legato.cli.main import main
from tests.e2e.conftest import Server, end_server, start_server, wait_until


def complete(server: Server, name: str) -> None:
    body = {"prompt": f"{name} " * 40, "max_tokens": 250, "ignore_eos": True, "request_id": name}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer


def explain(server: Server, name: str) -> Any:
    status, answer = server.get(f"/v1/requests/{name}/explain")
    return answer if status == 200 else None


def causes(explanation: Any) -> set[str]:
    return {part["cause"] for choice in explanation["choices"] for part in choice["parts"]}


def kill_engine(server: Server) -> None:
    pid = server.process.pid
    [engine] = (Path(f"/proc/{pid}/task/{task}/children").read_text().split() for task in _tasks(pid))
    os.kill(int(engine[0]), signal.SIGKILL)


def _tasks(pid: int) -> list[str]:
    tasks = os.listdir(f"/proc/{pid}/task")
    return [task for task in tasks if Path(f"/proc/{pid}/task/{task}/children").read_text()]


def test_time_of_each_request_is_explained_over_the_death_of_an_engine(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server(tmp_path, tiny_model, max_num_seqs=2, record=tmp_path / "recording")
    names = [f"r{number}" for number in range(6)]
    try:
        with ThreadPoolExecutor(len(names)) as threads:
            waits = [threads.submit(complete, server, name) for name in names]

            def is_under_way() -> bool:
                told = [told for name in names if (told := explain(server, name))]
                told = [each for each in told if each["status"] == "running"]
                return {"decode", "wait_row"} <= set().union(*map(causes, told)) if told else False

            wait_until(is_under_way)
            kill_engine(server)
            for wait in waits:
                wait.result()
        explained = {name: explain(server, name) for name in names}
    finally:
        end_server(server)
    for told in explained.values():
        [choice] = told["choices"]
        assert told["status"] == "ended"
        assert sum(part["seconds"] for part in choice["parts"]) == pytest.approx(told["elapsed_s"], abs=1e-6)
        assert choice["unexplained_s"] <= max(0.001, told["elapsed_s"] / 100), choice
    assert any({"lost", "restart", "recompute"} <= causes(told) for told in explained.values())
    assert any("wait_row" in causes(told) for told in explained.values())
    assert main(["replay", str(tmp_path / "recording")]) == 0
    assert "the same decisions" in capsys.readouterr().out
