"""Keys: who is let in, and that no header ever makes 500 of a 401."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService

KEYS = ("alpha", "beta", "ключ")


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return TestClient(create_app({"fake": service}, ServerConfig(api_key=KEYS)))


def keyless(service: FakeService, host: str) -> TestClient:
    return TestClient(create_app({"fake": service}, ServerConfig()), "http://localhost", client=(host, 50000))


@pytest.mark.parametrize(
    "value", [b"Bearer alpha", b"bearer beta", b"BEARER   alpha ", "Bearer ключ".encode()]
)
def test_each_key_is_let_in_whatever_the_case_of_the_scheme(client: TestClient, value: bytes) -> None:
    assert client.get("/v1/models", headers={"authorization": value}).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer alphb",
        b"Bearer alph",
        b"Bearer alphaa",
        b"Bearer ",
        b"Bearer",
        b"",
        b"alpha",
        b"Basic alpha",
        "Bearer чужой".encode(),
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 2**20,
    ],
)
def test_wrong_keys_get_401_in_openais_shape(client: TestClient, value: bytes) -> None:
    response = client.get("/v1/models", headers={"authorization": value})

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_two_keys_at_once_get_401(client: TestClient) -> None:
    headers = [("authorization", "Bearer alpha"), ("authorization", "Bearer alpha")]
    assert client.get("/v1/models", headers=headers).status_code == 401


def test_every_route_but_three_wants_a_key(client: TestClient) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    paths = {
        *app.openapi()["paths"],
        "/docs",
        "/openapi.json",
        "/nope",
        "/health/",
        "//health",
    }

    let_in = {
        path
        for path in paths
        for method in ("GET", "POST")
        if client.request(method, path).status_code != 401
    }

    assert let_in == {"/docs", "/health", "/ready"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "testclient", ""])
def test_without_keys_this_machine_is_served(service: FakeService, host: str) -> None:
    assert keyless(service, host).get("/v1/models").status_code == 200


@pytest.mark.parametrize("host", ["10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "example.org", "0.0.0.0"])
def test_without_keys_others_get_401_with_the_remedy(service: FakeService, host: str) -> None:
    response = keyless(service, host).get("/v1/models")

    assert response.status_code == 401
    assert "--api-key" in response.json()["error"]["message"]
    assert "LEGATO_API_KEY" in response.json()["error"]["message"]
    assert keyless(service, host).get("/health").status_code == 200


def test_first_client_that_is_refused_for_want_of_a_key_is_warned_about(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    client = keyless(service, "10.0.0.7")
    for _ in range(2):
        client.get("/v1/models")
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "10.0.0.7" in record.getMessage()
    assert "LEGATO_API_KEY" in record.getMessage()


def test_prefix_of_a_proxy_neither_opens_nor_closes_a_route(service: FakeService) -> None:
    server = ServerConfig(api_key=("alpha",), root_path="/llm")
    client = TestClient(create_app({"fake": service}, server))

    assert client.get("/llm/health").status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/llm/v1/models").status_code == 401
    assert client.get("/llm/v1/models", headers={"authorization": "Bearer alpha"}).status_code == 200


def salts_of(service: FakeService, keys: tuple[str, ...]) -> list[str]:
    """The cache salt of a request of each key, and of one that brings its own."""
    client = TestClient(create_app({"fake": service}, ServerConfig(api_key=keys)))
    for key in keys:
        for body in ({"prompt": "a"}, {"prompt": "a", "cache_salt": "own"}):
            headers = {"authorization": f"Bearer {key}".encode()}
            answer = client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
    return [submission["cache_salt"] for submission in service.generator.submissions]


def test_engine_is_shared_between_the_holders_of_several_keys(service: FakeService) -> None:
    salts_of(service, KEYS)
    tenants = [submission["tenant"] for submission in service.generator.submissions]
    assert tenants[0] == tenants[1] != tenants[2] == tenants[3]


def test_one_key_is_no_party_of_its_own(service: FakeService) -> None:
    client = TestClient(create_app({"fake": service}, ServerConfig(api_key=("alpha",))))
    client.post("/v1/completions", json={"prompt": "a"}, headers={"authorization": "Bearer alpha"})
    assert "tenant" not in service.generator.submissions[0]


def test_holders_of_different_keys_share_no_cached_prefix(service: FakeService) -> None:
    salts = salts_of(service, KEYS)
    assert len(set(salts)) == 6
    assert not any(key in salt for salt in salts for key in KEYS)


def test_holders_of_the_only_key_share_what_they_like(service: FakeService) -> None:
    assert salts_of(service, ("alpha",)) == ["", "own"]
