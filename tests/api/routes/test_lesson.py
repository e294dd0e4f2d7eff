"""Routes of the serving lesson: their exact schemas and defaults."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.core.errors import EngineDiedError, OverloadedError
from tests.api.fake_service import FakeService
from tests.api.sse_events import events_of
from tests.fakes import FakeGenerator


def test_basic_generate_gives_prompt_and_continuation(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = "." * 100

    response = client.post("/basic_generate", json={"prompt": "Hello"})

    assert response.json() == {"generated_text": "Hello" + "." * 50}
    assert generator.submissions[0]["params"].is_greedy


def test_generate_answers_in_the_requests_order(client: TestClient, generator: FakeGenerator) -> None:
    response = client.post("/generate", json={"prompts": ["a", "bb", "ccc"]})

    assert response.json() == {"generated_texts": ["aa", "bbbb", "cccccc"]}
    [submission] = generator.submissions
    assert (submission["params"].max_tokens, submission["params"].temperature) == (50, 0.0)


def test_generate_of_nothing_is_nothing_and_starts_no_engine(
    client: TestClient, service: FakeService
) -> None:
    assert client.post("/generate", json={"prompts": []}).json() == {"generated_texts": []}
    assert service.num_starts == 0


def test_generate_stream_is_one_event_a_token(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = "añ" + "." * 100

    events = events_of(client.post("/generate_stream", json={"prompt": "p"}).text)

    assert len(events) == 20
    assert [event["token"] for event in events[:4]] == ["a", "", "ñ", "."]
    assert all(set(event) == {"token", "sequence_id"} for event in events)
    assert len({event["sequence_id"] for event in events}) == 1
    params = generator.submissions[0]["params"]
    assert (params.max_tokens, params.temperature, params.top_p) == (20, 0.7, 1.0)


def test_a_step_of_several_tokens_is_as_many_events(client: TestClient, generator: FakeGenerator) -> None:
    generator.output, generator.tokens_per_delta = "abcde", 2

    events = events_of(client.post("/generate_stream", json={"prompt": "p"}).text)

    assert [event["token"] for event in events] == ["", "ab", "", "cd", "e"]


def test_error_in_generate_stream_is_one_event_without_done(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.failure, generator.fail_after = EngineDiedError("the engine ended"), 1

    events = events_of(client.post("/generate_stream", json={"prompt": "abc"}).text)

    assert events[0]["token"] == "a"
    assert events[1]["error"]["code"] == "engine_died"
    assert len(events) == 2


def test_fields_of_the_body_win_over_the_lessons_defaults(
    client: TestClient, generator: FakeGenerator
) -> None:
    body = {"prompt": "abcdef", "max_tokens": 2, "temperature": 1.5, "seed": 7, "truncate_prompt_tokens": 512}

    assert client.post("/basic_generate", json=body).json() == {"generated_text": "abcdefab"}

    [submission] = generator.submissions
    assert (submission["params"].temperature, submission["params"].seed) == (1.5, 7)
    assert submission["truncate_prompt_tokens"] == 512


def test_the_models_own_defaults_do_not_change_the_lessons(
    client: TestClient, generator: FakeGenerator, service: FakeService
) -> None:
    service.default_params = {"temperature": 0.2, "top_p": 0.9}

    client.post("/generate_stream", json={"prompt": "a"})

    params = generator.submissions[0]["params"]
    assert (params.temperature, params.top_p) == (0.7, 1.0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/basic_generate", {}),
        ("/basic_generate", {"prompt": 7}),
        ("/basic_generate", {"prompt": ["a"]}),
        ("/basic_generate", {"prompt": ""}),
        ("/generate", {"prompts": "a"}),
        ("/generate", {"prompts": ["a", 7]}),
        ("/generate", {"prompts": ["a", ""]}),
        ("/generate_stream", {"prompt": ""}),
        ("/generate_vllm", {"prompts": [""]}),
        ("/generate_stream", {"prompt": "a", "temperature": 7}),
        ("/generate_stream", {"prompt": "a", "n": 2}),
        ("/generate_vllm", {"prompts": ["a"], "max_tokens": 0}),
        ("/generate", []),
    ],
)
def test_bodies_that_do_not_fit_are_422(client: TestClient, path: str, body: Any) -> None:
    response = client.post(path, json=body)

    assert response.status_code == 422
    assert isinstance(response.json()["detail"], list)


def test_refusals_of_the_engine_have_their_status_and_field(
    client: TestClient, generator: FakeGenerator
) -> None:
    too_long = client.post("/generate", json={"prompts": ["a" * 1024]})
    generator.refusal = OverloadedError("the queue is full", retry_after_s=1)
    full = client.post("/generate_stream", json={"prompt": "a"})

    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "prompts")
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")


def test_unknown_fields_are_told(client: TestClient) -> None:
    assert client.post("/basic_generate", json={"prompt": "a", "foo": 1}).headers["x-legato-ignored"] == "foo"


def test_generate_vllm_without_an_engine(client: TestClient) -> None:
    response = client.post("/generate_vllm", json={"prompts": ["a"]})

    assert response.status_code == 503
    assert "--vllm-url" in response.json()["error"]["message"]
    assert client.post("/generate_vllm", json={"prompts": []}).json() == {"generated_texts": []}


@pytest.mark.parametrize(
    ("content", "content_type", "at"),
    [
        (b'{"prompts": ["a"]}', "text/plain", ["body"]),
        (b'{"prompts": ["a"], "temperature": 1e999}', "application/json", ["body", "temperature"]),
        (b'{"prompts": ["a"], "top_k": 0.5}', "application/json", ["body", "top_k"]),
        (b"\xff", "application/json", ["body", 0]),
    ],
)
def test_what_json_cannot_say_is_a_fault_too(
    client: TestClient, content: bytes, content_type: str, at: list[Any]
) -> None:
    response = client.post("/generate", content=content, headers={"content-type": content_type})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == at
