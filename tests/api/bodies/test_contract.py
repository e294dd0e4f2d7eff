"""Nothing is ignored silently: headers name what was not read or not taken as given; --strict refuses it."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService
from tests.api.openai_calls import USER, refused
from tests.fakes import FakeGenerator

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def strict(service: FakeService) -> TestClient:
    return TestClient(create_app({"fake": service}, ServerConfig(strict=True)))


def told(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, str]:
    """The headers of an answer that tell of fields."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    headers = response.headers.items()
    return {name: value for name, value in headers if name in ("x-legato-ignored", "x-legato-adjusted")}


def test_unknown_fields_are_named_and_notes_are_not(client: TestClient) -> None:
    body = {
        "prompt": "a",
        "zeta": 1,
        "verbosity": "low",
        "user": "u",
        "metadata": {},
        "prompt_cache_key": "k",
    }
    assert told(client, COMPLETIONS, body) == {"x-legato-ignored": "verbosity,zeta"}


@pytest.mark.parametrize("stream", [False, True])
def test_streams_tell_it_in_their_head_too(client: TestClient, stream: bool) -> None:
    body = {"messages": [USER], "zeta": 1, "store": True, "stream": stream}
    assert told(client, CHAT, body) == {"x-legato-ignored": "zeta", "x-legato-adjusted": "store"}


@pytest.mark.parametrize(
    ("fields", "adjusted"),
    [
        ({"store": True}, "store"),
        ({"store": False}, None),
        ({"service_tier": "flex"}, "service_tier"),
        ({"service_tier": "auto"}, None),
        ({"max_tokens": 5, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 4}, None),
        ({"max_tokens": 4}, None),
        ({"store": None, "service_tier": None, "max_completion_tokens": None}, None),
    ],
)
def test_fields_taken_with_another_value_are_named(
    client: TestClient, strict: TestClient, fields: dict[str, Any], adjusted: str | None
) -> None:
    body = {"messages": [USER], **fields}
    if adjusted is None:
        assert told(client, CHAT, body) == told(strict, CHAT, body) == {}
    else:
        assert told(client, CHAT, body) == {"x-legato-adjusted": adjusted}
        assert refused(strict, CHAT, body)["param"] == adjusted


@pytest.mark.parametrize(
    ("fields", "ignored", "param"),
    [
        ({"zeta": 1}, "zeta", "zeta"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "stream_options.x"),
        ({"messages": [USER, {**USER, "x": 1}, {**USER, "x": 2}]}, "messages.x", "messages.1.x"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]},
            "messages.content.cache_control",
            "messages.0.content.0.cache_control",
        ),
    ],
)
def test_a_field_that_nobody_reads_is_named_wherever_it_stands(
    client: TestClient, strict: TestClient, fields: dict[str, Any], ignored: str, param: str
) -> None:
    body = {"messages": [USER], **fields}

    assert told(client, CHAT, body) == {"x-legato-ignored": ignored}
    error = refused(strict, CHAT, body)

    assert (error["param"], error["code"]) == (param, "unsupported")
    assert param in error["message"]


def test_null_is_like_absent_for_fields_that_nobody_knows(strict: TestClient) -> None:
    answer = {"role": "assistant", "content": "a", "refusal": None, "annotations": None, "tool_calls": None}
    assert told(strict, CHAT, {"messages": [USER, answer, USER], "zeta": None}) == {}


def test_what_is_refused_queues_nothing(strict: TestClient, generator: FakeGenerator) -> None:
    refused(strict, COMPLETIONS, {"prompt": "a", "zeta": 1})
    assert generator.submissions == []


def example_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The fields of a route's body that must be there, else its first with an example."""
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    fields = {
        name: field["examples"][0] for name, field in schema["properties"].items() if "examples" in field
    }
    wanted = schema.get("required") or list(fields)[:1]
    return {name: fields[name] for name in wanted}


def test_every_route_with_a_body_tells_or_refuses(client: TestClient, strict: TestClient) -> None:
    document = client.get("/openapi.json").json()
    paths = [path for path, methods in document["paths"].items() if "requestBody" in methods.get("post", {})]
    assert len(paths) >= 8
    for path in paths:
        body = example_of(document, path) | {"zeta": 1}
        if path == "/generate_vllm":
            body["prompts"] = []  # no engine of vLLM is there
        assert told(client, path, body) == {"x-legato-ignored": "zeta"}, path
        refusal = strict.post(path, json=body)
        if path in ("/basic_generate", "/generate", "/generate_stream", "/generate_vllm"):
            assert refusal.status_code == 422
            assert refusal.json()["detail"][0]["loc"] == ["body", "zeta"]
        elif path.startswith("/v1/messages"):  # Anthropic's shape has no param
            assert refusal.status_code == 400
            assert refusal.json()["error"]["message"].startswith("zeta ")
        else:
            assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "zeta")


def test_names_of_unknown_fields_cannot_break_the_header(client: TestClient, strict: TestClient) -> None:
    names = {"a\r\nset-cookie: x": 1, "ключ": 1, "x" * 100_000: 1} | {f"f{i:04}": 1 for i in range(1000)}

    response = client.post(COMPLETIONS, json={"prompt": "a", **names})

    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert len(response.headers["x-legato-ignored"]) < 4096
    assert response.headers["x-legato-ignored"].endswith(",...")
    assert len(strict.post(COMPLETIONS, json={"prompt": "a", "x" * 100_000: 1}).content) < 1000
