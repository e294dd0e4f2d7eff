"""From a config to an opened model."""

import json
import shutil
from pathlib import Path

import pytest

from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError
from legato.frontend.open_llm import OpenedModel, open_llm


class FakeClient:
    """Stands in for EngineClient: was it started, was it closed?"""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def opened(client: FakeClient, model: Path, **settings: object) -> OpenedModel:
    return open_llm(EngineConfig(model=str(model), **settings), client)  # type: ignore[arg-type]


def test_engine_is_started_and_the_tokenizer_read(client: FakeClient, tiny_model: Path) -> None:
    model = opened(client, tiny_model)
    assert client.calls == ["start"]
    assert model.path == tiny_model
    assert model.llm.tokenizer is not None
    assert model.llm.tokenizer.encode("ab") == [97, 98]


@pytest.fixture
def own_defaults(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the small model with sampling defaults of its own."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_k": 20}))
    return folder


def test_models_own_sampling_defaults_count_unless_told_otherwise(
    client: FakeClient, own_defaults: Path
) -> None:
    assert opened(client, own_defaults).default_params == {"temperature": 0.3, "top_k": 20}
    assert opened(client, own_defaults, generation_config="none").default_params == {}


def test_remote_code_is_refused_before_anything_starts(client: FakeClient, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="never runs code that comes with a model"):
        opened(client, tiny_model, trust_remote_code=True)
    assert client.calls == []


@pytest.mark.parametrize("setting", ["tokenizer", "chat_template"])
def test_engine_is_closed_when_the_rest_cannot_be_read(
    client: FakeClient, tiny_model: Path, tmp_path: Path, setting: str
) -> None:
    with pytest.raises(ModelError, match="absent"):
        opened(client, tiny_model, **{setting: str(tmp_path / "absent.json")})
    assert client.calls == ["start", "close"]


def test_tokenizer_and_template_may_come_from_elsewhere(
    client: FakeClient, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.jinja").write_text("{{ messages[0]['content'] }}")
    bare = shutil.copytree(tiny_model, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*.json"))
    model = opened(client, bare, tokenizer=str(tiny_model), chat_template="~/own.jinja")
    assert model.llm.tokenizer is not None
    assert model.llm._chat_template is not None
    assert model.llm._chat_template.render([{"role": "user", "content": "hi"}]) == "hi"
