"""A server of our own: started, called, ended; and its last words when it does not start."""

from pathlib import Path

import pytest

from legato.bench.endpoint import BenchError
from legato.bench.server_process import ServerProcess


def test_server_answers_while_the_block_runs(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_API_KEY", "not for this server")
    with ServerProcess("tiny", [str(tiny_model), "--batching", "static"]) as server:
        assert server.get("/stats")["rounds"] == 0
        body = {"prompts": ["a", "b", "c", "d", "e"], "max_tokens": 2}
        assert len(server.post("/generate", body)["generated_texts"]) == 5
        assert server.get("/stats")["rounds"] == 2
        with pytest.raises(BenchError, match="the tiny server answered POST /generate with 422"):
            server.post("/generate", {"prompts": ["a"], "max_tokens": 0})
    with pytest.raises(BenchError, match="the tiny server broke off GET /stats"):
        server.get("/stats")


def test_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(BenchError, match=r"the lost server did not start:\n.*no model '/nowhere'"),
        ServerProcess("lost", ["/nowhere"]),
    ):
        pass
