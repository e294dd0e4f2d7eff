"""Host headers: what a server without a key is called by, and what it is told when it is another name."""

from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService


def status_of(service: FakeService, host: str, /, *, server: str = "127.0.0.1", **settings: object) -> int:
    app = create_app({"fake": service}, ServerConfig(**settings))  # type: ignore[arg-type]
    http = TestClient(app, f"http://{server}", client=("127.0.0.1", 50000))
    return http.get("/v1/models", headers={"host": host}).status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.:8000",
        "llm.localhost:8000",
        "127.0.0.1:8000",
        "127.9.9.9",
        "[::1]:8000",
        "[::ffff:127.0.0.1]:80",
    ],
)
def test_names_of_this_machine_to_itself_are_answered(service: FakeService, host: str) -> None:
    assert status_of(service, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "10.0.0.7:8000",
        "[2001:db8::1]:8000",
        "[::1",
        "",
    ],
)
def test_other_names_are_refused(service: FakeService, host: str) -> None:
    assert status_of(service, host) == 403


@pytest.mark.parametrize("names", [("llm.lan", "other.lan"), ("LLM.lan:80",)])
def test_names_that_are_allowed_are_answered(service: FakeService, names: Sequence[str]) -> None:
    assert status_of(service, "llm.lan:8000", allowed_hosts=tuple(names)) == 200
    assert status_of(service, "evil.example", allowed_hosts=tuple(names)) == 403


@pytest.mark.parametrize(
    ("bind", "host"), [("devbox", "devbox:8000"), ("::1", "[::1]"), ("fd00::7", "[fd00::7]:80")]
)
def test_address_that_is_listened_on_is_a_name(service: FakeService, bind: str, host: str) -> None:
    assert status_of(service, host, host=bind) == 200


def test_who_shows_a_key_may_call_by_any_name(service: FakeService) -> None:
    app = create_app({"fake": service}, ServerConfig(api_key=("alpha",)))
    client = TestClient(app, "http://127.0.0.1")
    headers = {"host": "llm.example", "authorization": "Bearer alpha"}
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("server", ["testserver", "unix-socket"])
def test_calls_that_came_by_no_network_are_not_checked(service: FakeService, server: str) -> None:
    assert status_of(service, "evil.example", server=server) == 200


@pytest.mark.parametrize(("client", "status"), [("testclient", 403), ("", 403), ("no-address", 401)])
def test_page_cannot_pass_for_one_by_what_it_says_of_the_client(
    service: FakeService, client: str, status: int
) -> None:
    http = TestClient(create_app({"fake": service}, ServerConfig()), "http://127.0.0.1", client=(client, 1))
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == status


def test_connection_by_ipv6_is_checked_too(service: FakeService) -> None:
    assert status_of(service, "evil.example", server="[::1]") == 403
    assert status_of(service, "[::1]", server="[::1]") == 200


def test_refusal_says_what_to_do_and_probes_need_not(service: FakeService) -> None:
    client = TestClient(create_app({"fake": service}, ServerConfig()), "http://127.0.0.1")
    headers = {"host": "evil.example:8000"}
    error = client.post("/v1/completions", json={"prompt": "a"}, headers=headers).json()["error"]
    assert error["code"] == "host_not_allowed"
    for part in ("'evil.example:8000'", "--allowed-hosts", "LEGATO_ALLOWED_HOSTS", "--api-key"):
        assert part in error["message"]
    assert service.generator.submissions == []
    assert client.get("/health", headers=headers).status_code == 200
