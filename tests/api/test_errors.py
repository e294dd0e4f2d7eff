"""Every kind of error has its status, and one shape."""

import pytest
from fastapi.testclient import TestClient

from legato.api.errors import describe
from legato.core import errors
from legato.core.errors import LegatoError


def test_every_error_class_has_a_row() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, LegatoError)
    ]
    wait = {"retry_after_s": 1.0}
    needs = {
        errors.LoadFailedError: wait,
        errors.OverloadedError: wait,
        errors.SlowFirstTokenError: wait | {"first_token_at": 2.0},
        errors.NotReadyError: wait,
        errors.ClosedError: wait,
    }

    statuses = {each.__name__: describe(each("why", **needs.get(each, {})), "id").status for each in classes}

    assert statuses == {
        "LegatoError": 500,
        "NonFiniteLogitsError": 500,
        "SlowReaderError": 408,
        "ConfigError": 503,
        "ModelError": 503,
        "LoadFailedError": 503,
        "RequestError": 400,
        "UnknownModelError": 404,
        "UnknownRequestError": 404,
        "OverloadedError": 429,
        "SlowFirstTokenError": 429,
        "NotReadyError": 503,
        "ClosedError": 503,
        "PoisonedRequestError": 500,
        "QueueTimeoutError": 503,
        "EngineDiedError": 503,
        "GrammarFailedError": 500,
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("POST", "/v1/", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("GET", "/generate", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
    ],
)
def test_wrong_paths_and_methods_answer_in_openais_shape(
    client: TestClient, method: str, path: str, status: int, code: str
) -> None:
    response = client.request(method, path)

    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["code"] == code
    assert path in response.json()["error"]["message"]


def test_405_names_the_methods_that_are_allowed(client: TestClient) -> None:
    assert client.get("/v1/completions").headers["allow"] == "POST"


def test_missing_field_is_400_on_v1_and_fastapis_422_on_the_lessons_routes(client: TestClient) -> None:
    openai = client.post("/v1/chat/completions", json={})
    lesson = client.post("/generate", json={})

    assert openai.status_code == 400
    assert openai.json()["error"]["param"] == "messages"
    assert lesson.status_code == 422
    assert lesson.json()["detail"][0]["loc"] == ["body", "prompts"]
