"""The app of the environment: what is wrong with a variable or a model is told in a line."""

import asyncio
import os
import subprocess
import sys

import pytest

from legato.api.asgi import app_from_environment
from legato.api.engine_service import EngineService
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError


def test_variable_that_does_not_fit_ends_uvicorn_with_one_line() -> None:
    command = [sys.executable, "-m", "uvicorn", "legato.api.asgi:app", "--port", "0"]
    environment = os.environ | {"LEGATO_BATCHING": "magic"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == (
        "legato: error: LEGATO_BATCHING=magic: choose one of continuous, prefill-first, static\n"
    )


def test_variable_names_several_models() -> None:
    app = app_from_environment({"LEGATO_MODEL": "org/a,/nowhere/b.gguf"})
    assert [name for name, _ in app.state.models.items()] == ["org/a", "b"]


def test_caller_of_the_factory_gets_the_error_itself() -> None:
    with pytest.raises(ConfigError, match="LEGATO_PORT=70000: must be at most 65535"):
        app_from_environment({"LEGATO_PORT": "70000"})


def test_variable_that_nothing_reads_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("legato.api.asgi.set_up_logging", lambda *_, **__: None)
    app_from_environment({"LEGATO_MAX_NUM_SEQ": "3"})
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "did you mean LEGATO_MAX_NUM_SEQS?" in record.getMessage()


def test_model_that_cannot_be_opened_promises_nothing_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = EngineService(EngineConfig(model="/nowhere"))
    with pytest.raises(ModelError, match="no model '/nowhere'"):
        asyncio.run(service.start())
    monkeypatch.setattr("legato.api.engine_service.open_llm", None)
    with pytest.raises(ModelError, match="no model '/nowhere'"):
        asyncio.run(service.start())
    state = service.state()
    assert (state.stage, state.is_alive, state.retry_after_s) == ("failed", False, None)
    assert state.reason.startswith("no model '/nowhere'")
