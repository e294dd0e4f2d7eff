"""Explanations in answers and by id, on every route that generates."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService
from tests.api.openai_calls import USER
from tests.api.sse_events import events_of, named_events_of

EXPLAIN = {"x-legato-explain": "1"}
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
)
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [USER], "max_tokens": 5},
    "/basic_generate": {"prompt": "hi"},
    "/generate": {"prompts": ["hi", "there"]},
}


def check(explanation: dict[str, Any]) -> None:
    """That it is of one answer or more, and adds up."""
    assert explanation["object"] == "request.explanation"
    for choice in explanation["choices"]:
        assert [part["cause"] for part in choice["parts"]][:2] == ["receive", "prepare"]
        total = sum(part["seconds"] for part in choice["parts"])
        assert total == pytest.approx(explanation["elapsed_s"], abs=1e-6)


@pytest.mark.parametrize("path", BODIES)
def test_answer_has_the_member_when_asked_and_only_then(client: TestClient, path: str) -> None:
    plain = client.post(path, json=BODIES[path]).json()
    answer = client.post(path, json=BODIES[path], headers=EXPLAIN)
    assert "x-legato-ignored" not in answer.headers
    check(answer.json()["explain"])
    assert answer.json().keys() - plain.keys() == {"explain"}
    assert (
        client.post(path, json=BODIES[path], headers={"x-legato-explain": "0"}).json().keys() == plain.keys()
    )


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_stream_ends_with_a_chunk_without_choices(client: TestClient, path: str, usage: bool) -> None:
    body = BODIES[path] | {"stream": True, "stream_options": {"include_usage": usage}}
    *chunks, last, done = events_of(client.post(path, json=body, headers=EXPLAIN).text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert ("usage" in last) == usage
    check(last["explain"])
    assert all(chunk["choices"] and "explain" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("path", "last_type"), [(RESPONSES, "response.completed"), (MESSAGES, "message_stop")]
)
def test_stream_of_named_events_has_it_in_its_last(client: TestClient, path: str, last_type: str) -> None:
    text = client.post(path, json=BODIES[path] | {"stream": True}, headers=EXPLAIN).text
    *others, last = named_events_of(text)
    assert last["type"] == last_type
    check(last["response"]["explain"] if path == RESPONSES else last["explain"])
    assert "explain" not in str(others)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate_stream", {"prompt": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/generate_vllm", {"prompts": []}),
    ],
)
def test_route_that_cannot_says_so(client: TestClient, path: str, body: dict[str, Any]) -> None:
    assert client.post(path, json=body, headers=EXPLAIN).headers["x-legato-ignored"] == "x-legato-explain"


@pytest.mark.parametrize(("path", "status"), [(CHAT, 400), (MESSAGES, 400), ("/basic_generate", 400)])
def test_value_that_is_neither_yes_nor_no_is_refused(client: TestClient, path: str, status: int) -> None:
    refusal = client.post(path, json=BODIES[path], headers={"x-legato-explain": "please"})
    assert refusal.status_code == status
    assert "x-legato-explain must be 1 or 0, not 'please'" in refusal.text


@pytest.mark.parametrize("path", BODIES)
def test_answer_is_explained_by_its_ids_after_it(client: TestClient, path: str) -> None:
    answer = client.post(path, json=BODIES[path], headers={"x-request-id": "my/own"})
    for name in ("my/own", answer.json().get("id", "my/own")):
        told = client.get(f"/v1/requests/{name}/explain")
        assert told.status_code == 200
        assert told.json()["status"] == "ended"
        check(told.json())
    assert len(told.json()["choices"]) == (2 if path == "/generate" else 1)


def test_unknown_request_is_404(client: TestClient) -> None:
    answer = client.get("/v1/requests/chatcmpl-1/explain")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"
    assert "unknown, or ended too long ago" in answer.json()["error"]["message"]


def test_key_explains_its_own_requests_alone(service: FakeService) -> None:
    app: FastAPI = create_app({"fake": service}, ServerConfig(api_key=("one", "two")))
    client = TestClient(app)
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    answer_id = client.post(COMPLETIONS, json=BODIES[COMPLETIONS], headers=one).json()["id"]
    assert client.get(f"/v1/requests/{answer_id}/explain", headers=one).status_code == 200
    assert client.get(f"/v1/requests/{answer_id}/explain", headers=two).status_code == 404
