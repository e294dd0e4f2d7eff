"""Request ids, the last resort for errors, the request log."""

import logging

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator


@pytest.mark.parametrize("given", ["a", "req-1_2.3:4/5+6=7@8", "x" * 127, "x" * 128])
def test_plain_ids_are_echoed(client: TestClient, given: str) -> None:
    assert client.get("/health", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given", ["", "x" * 129, "x" * 2**20, "a b", "a\x1b[31m", "{}%s", "ключ", "a,b", 'a"b', "a\x00"]
)
def test_other_ids_are_replaced(client: TestClient, given: str) -> None:
    answered = client.get("/health", headers={"x-request-id": given.encode()}).headers["x-request-id"]

    assert answered != given
    assert len(answered) == 32


def test_every_answer_has_an_id_of_its_own(client: TestClient, generator: FakeGenerator) -> None:
    generator.failure = RuntimeError("secret")
    responses = [
        client.get("/health"),
        client.get("/nope"),
        client.get("/v1/completions"),
        client.post("/v1/completions", content=b"{"),
        client.post("/v1/completions", json={"prompt": "a"}),
        client.post("/v1/completions", json={"prompt": "a", "stream": True}),
        client.post("/generate", json={}),
    ]
    assert [response.status_code for response in responses] == [200, 404, 405, 400, 500, 200, 422]
    assert len({response.headers["x-request-id"] for response in responses}) == len(responses)


def test_unforeseen_errors_are_logged_and_told_without_their_text(
    client: TestClient, generator: FakeGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    generator.refusal = RuntimeError("secret of the house")

    response = client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "id-7"})

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert "request id-7 failed" in caplog.text
    assert "secret of the house" in caplog.text


def test_request_log_is_off_by_default_and_never_holds_text(
    service: FakeService, app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "legato")
    body = {"prompt": "my secret"}
    TestClient(app).post("/v1/completions", json=body)
    assert caplog.text == ""

    logged = TestClient(create_app({"fake": service}, ServerConfig(enable_log_requests=True)))
    logged.post("/v1/completions", json=body, headers={"x-request-id": "id-8"})
    logged.get("/a%0Aforged line")
    logged.get("/health")

    assert "id-8 POST '/v1/completions': 200 in" in caplog.text
    assert "my secret" not in caplog.text
    assert "\nforged" not in caplog.text
    assert "/health" not in caplog.text


def test_no_cors_headers_are_sent(client: TestClient) -> None:
    response = client.get("/v1/models", headers={"origin": "https://evil.example"})
    preflight = client.options("/v1/completions", headers={"origin": "https://evil.example"})

    assert not [name for name in response.headers if name.startswith("access-control")]
    assert preflight.status_code == 405
