"""Calls end in time: with what they have, or with 503 when they have nothing yet."""

import asyncio
import json

import pytest
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator
from tests.virtual_time import VirtualTimeLoop

BODY = {"prompt": "abcdef"}


def paused_client(pause_after: int, **settings: int) -> tuple[TestClient, FakeGenerator]:
    """A generator that gives so many tokens and then none until it is told to end."""
    service = FakeService(FakeGenerator())
    service.generator.pause_after = pause_after
    app = create_app({"fake": service}, ServerConfig(**settings))
    return TestClient(app, backend_options={"loop_factory": VirtualTimeLoop}), service.generator


def test_time_that_ends_after_the_first_token_gives_what_there_is() -> None:
    client, _ = paused_client(2)
    plain = client.post("/v1/completions", json=BODY, headers={"x-request-timeout": "60"})
    assert plain.status_code == 200
    choice = plain.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "timeout")

    client, _ = paused_client(2)
    stream = client.post("/v1/completions", json=BODY | {"stream": True}, headers={"x-request-timeout": "60"})
    *_, last, done = stream.text.split("\n\n")[:-1]
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "timeout"
    assert done == "data: [DONE]"


def test_time_that_ends_before_the_first_token_is_503_or_an_error_event() -> None:
    client, generator = paused_client(0)
    plain = client.post("/v1/completions", json=BODY, headers={"x-request-timeout": "60"})
    assert (plain.status_code, plain.json()["error"]["code"]) == (503, "queue_timeout")
    assert plain.headers["retry-after"]
    assert generator.num_aborted == 1

    client, _ = paused_client(0)
    stream = client.post("/v1/completions", json=BODY | {"stream": True}, headers={"x-request-timeout": "60"})
    *pings, error, done = stream.text.split("\n\n")[:-1]
    assert set(pings) == {": ping"}
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "queue_timeout"
    assert done == "data: [DONE]"


@pytest.mark.parametrize("setting", ["queue_timeout_s", "request_timeout_s"])
def test_servers_own_limit_holds_without_a_header(setting: str) -> None:
    client, _ = paused_client(0, **{setting: 60})
    assert client.post("/v1/completions", json=BODY).json()["error"]["code"] == "queue_timeout"


def test_limit_of_the_queue_is_none_of_the_answer() -> None:
    client, _ = paused_client(1, queue_timeout_s=60, request_timeout_s=120)
    answer = client.post("/v1/completions", json=BODY).json()
    assert answer["choices"][0]["finish_reason"] == "timeout"


@pytest.mark.parametrize("setting", ["queue_timeout_s", "request_timeout_s"])
def test_time_passes_also_before_the_engine_has_taken_the_request(setting: str) -> None:
    client, generator = paused_client(0, **{setting: 60})
    generator.is_queue_stuck = True
    assert client.post("/v1/completions", json=BODY).json()["error"]["code"] == "queue_timeout"


@pytest.mark.parametrize("stuck", ["start", "chat_prompt"])
def test_time_passes_also_while_an_engine_loads_and_a_template_waits_for_its_thread(
    stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, generator = paused_client(0, request_timeout_s=60)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    if stuck == "start":
        monkeypatch.setattr(FakeService, "enter_now", lambda _: None)
    monkeypatch.setattr(FakeService if stuck == "start" else FakeGenerator, stuck, never)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert generator.submissions == []


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf", ""])
def test_header_that_is_no_time_is_400(given: str) -> None:
    client, generator = paused_client(0)
    response = client.post("/v1/completions", json=BODY, headers={"x-request-timeout": given})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-timeout"
    assert generator.submissions == []
