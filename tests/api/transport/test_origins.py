"""Web pages of other origins: none may read anything, but those that are named."""

import pytest
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from legato.core.errors import ConfigError
from legato.core.settings import resolve_settings
from tests.api.fake_service import FakeService

PAGE = "https://app.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


def client_of(service: FakeService, *origins: str) -> TestClient:
    server = ServerConfig(api_key=("alpha",), allowed_origins=origins)
    return TestClient(create_app({"fake": service}, server))


def test_without_origins_nothing_is_answered_to_pages(service: FakeService) -> None:
    client = client_of(service)
    preflight = client.options("/v1/completions", headers=PREFLIGHT)
    answer = client.get("/v1/models", headers={"origin": PAGE, "authorization": "Bearer alpha"})
    assert (preflight.status_code, answer.status_code) == (401, 200)
    for response in (preflight, answer):
        assert not [name for name in response.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(("allowed", "told"), [(PAGE, PAGE), ("*", "*")])
def test_preflight_of_an_allowed_page_needs_no_key(service: FakeService, allowed: str, told: str) -> None:
    preflight = client_of(service, allowed).options("/v1/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == told
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "http://app.example", PAGE + ":8443", "null"])
def test_other_pages_get_no_permission(service: FakeService, origin: str) -> None:
    client = client_of(service, PAGE)
    preflight = client.options("/v1/completions", headers=PREFLIGHT | {"origin": origin})
    answer = client.get("/v1/models", headers={"origin": origin, "authorization": "Bearer alpha"})
    assert preflight.status_code == 400
    for response in (preflight, answer):
        assert "access-control-allow-origin" not in response.headers


def test_allowed_page_still_needs_a_key_and_can_read_why(service: FakeService) -> None:
    client = client_of(service, PAGE)
    refused = client.get("/v1/models", headers={"origin": PAGE})
    answered = client.get("/v1/models", headers={"origin": PAGE, "authorization": "Bearer alpha"})
    assert (refused.status_code, answered.status_code) == (401, 200)
    for response in (refused, answered):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "retry-after-ms" in response.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in response.headers


def test_origins_are_taken_as_browsers_write_them() -> None:
    given = {"LEGATO_ALLOWED_ORIGINS": "https://App.example/,http://localhost:3000,app://notes.example,*"}
    server = resolve_settings(ServerConfig, {}, given).value
    assert server.allowed_origins == (PAGE, "http://localhost:3000", "app://notes.example", "*")


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/chat", "https://*.example", "null"])
def test_what_no_browser_would_send_as_an_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"LEGATO_ALLOWED_ORIGINS=.*expected an origin like https://app"):
        resolve_settings(ServerConfig, {}, {"LEGATO_ALLOWED_ORIGINS": origin})
