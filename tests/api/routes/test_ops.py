"""Health, readiness, metrics, version and ledgers."""

import asyncio
import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.api.service import ServiceState
from legato.core.config import ServerConfig
from legato.core.errors import EngineDiedError, OverloadedError
from legato.ipc.messages import EngineStats, RequestStats
from tests.api.asgi_call import AsgiCall
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator

LOADING = ServiceState(
    stage="loading weights",
    is_ready=False,
    is_alive=True,
    reason="the engine is starting",
    progress=0.4,
    retry_after_s=1.5,
)
DEAD = ServiceState(
    stage="ended",
    is_ready=False,
    is_alive=False,
    reason="the engine ended three times",
    retry_after_s=None,
)


def sample(client: TestClient, series: str) -> float:
    """The value of one series, e.g. 'vllm:prompt_tokens_total{model_name="fake"}'."""
    [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith(series + " ")]
    return float(line.split()[-1])


def test_serving_engine_is_healthy_and_ready(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}


def test_loading_engine_is_healthy_and_not_ready(client: TestClient, service: FakeService) -> None:
    service.current_state = LOADING

    ready = client.get("/ready")

    assert client.get("/health").status_code == 200
    assert ready.status_code == 503
    assert ready.headers["retry-after"] == "2"
    assert ready.json() == {
        "stage": "loading weights",
        "progress": 0.4,
        "reason": "the engine is starting",
        "retry_after_s": 1.5,
    }


def test_dead_engine_is_neither(client: TestClient, service: FakeService) -> None:
    service.current_state = DEAD

    health = client.get("/health")

    assert health.status_code == 503
    assert health.json()["reason"] == "the engine ended three times"
    ready = client.get("/ready")
    assert ready.status_code == 503
    assert "retry_after_s" not in ready.json()
    assert "retry-after" not in ready.headers


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("state", [LOADING, DEAD])
def test_probe_by_head_gets_the_head_of_get(
    client: TestClient, service: FakeService, path: str, state: ServiceState
) -> None:
    service.current_state = state
    assert client.head(path).status_code == client.get(path).status_code


def test_one_dead_model_of_two_is_seen() -> None:
    well, dead = FakeService(names=("well",)), FakeService(names=("dead",))
    dead.current_state = DEAD
    client = TestClient(create_app({"well": well, "dead": dead}, ServerConfig()))

    health = client.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "degraded", "reason": DEAD.reason})
    assert client.post("/v1/completions", json={"prompt": "a", "model": "well"}).status_code == 200
    well.current_state = DEAD
    assert client.get("/health").status_code == 503


def test_stats_tell_the_ledger_of_each_request(client: TestClient, service: FakeService) -> None:
    request = RequestStats(
        request_id="r",
        state="decoding",
        row=1,
        prompt_len=5,
        cached_len=6,
        device_len=7,
        max_device_len=20,
        extend_len=1,
        remain_len=13,
        pages=[3],
        num_preemptions=0,
    )
    service.engine_stats = EngineStats(
        query_id="q", step=9, running=1, pages_held=1, pages_free=3, requests=[request]
    )

    stats = client.get("/stats").json()

    assert stats["model"] == "fake"
    assert (stats["step"], stats["running"], stats["pages_free"]) == (9, 1, 3)
    assert stats["requests"][0]["extend_len"] == 1
    assert stats["requests"][0]["pages"] == [3]
    assert "query_id" not in stats
    assert client.get("/stats?model=nope").status_code == 404


def test_stats_without_an_engine_are_503(client: TestClient, service: FakeService) -> None:
    service.engine_stats = None
    assert client.get("/stats").status_code == 503


def test_version_is_told(client: TestClient) -> None:
    assert re.fullmatch(r"\d.*", client.get("/version").json()["version"])


def test_totals_equal_the_usage_told_to_clients_over_all_routes(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "abcd"
    client.post("/v1/completions", json={"prompt": ["a", "bb"]})
    client.post("/v1/completions", json={"prompt": "ccc", "stream": True, "max_tokens": 2})
    client.post("/generate", json={"prompts": ["dddd", "eeeee"]})
    client.post("/generate_stream", json={"prompt": "ffffff"})
    generator.refusal = OverloadedError("full", retry_after_s=1)
    client.post("/v1/completions", json={"prompt": "a"})

    for prefix in ("legato_", "vllm:"):
        model = 'model_name="fake"'
        assert sample(client, f"{prefix}prompt_tokens_total{{{model}}}") == 1 + 2 + 3 + 4 + 5 + 6
        assert sample(client, f"{prefix}generation_tokens_total{{{model}}}") == 5 * 4 + 2
        assert sample(client, f"{prefix}time_to_first_token_seconds_count{{{model}}}") == 6
        assert sample(client, f"{prefix}inter_token_latency_seconds_count{{{model}}}") == 5 * 3 + 1
        assert sample(client, f"{prefix}e2e_request_latency_seconds_count{{{model}}}") == 6
        assert sample(client, f'{prefix}request_success_total{{finished_reason="stop",{model}}}') == 5
        assert sample(client, f'{prefix}request_success_total{{finished_reason="length",{model}}}') == 1
        assert sample(client, f'{prefix}admission_rejections_total{{{model},reason="queue_full"}}') == 1


def test_failed_requests_are_counted_as_such(client: TestClient, generator: FakeGenerator) -> None:
    generator.failure, generator.fail_after = EngineDiedError("ended"), 1
    client.post("/v1/completions", json={"prompt": "abc"})
    client.post("/v1/completions", json={"prompt": "abc", "stream": True})

    series = 'vllm:request_success_total{finished_reason="%s",model_name="fake"}'
    assert sample(client, series % "error") == 2
    assert sample(client, series % "abort") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_requests_of_clients_that_leave_are_counted_as_aborted(
    app: FastAPI, client: TestClient, generator: FakeGenerator, stream: bool
) -> None:
    generator.pause_after = 1

    async def run() -> None:
        call = AsgiCall(app, "/v1/completions", {"prompt": "abc", "stream": stream})
        while not generator.submissions:
            await asyncio.sleep(0)
        call.leave()
        await call.task

    asyncio.run(run())
    assert sample(client, 'legato_request_success_total{finished_reason="abort",model_name="fake"}') == 1


def test_scrapes_read_the_engines_gauges(client: TestClient, service: FakeService) -> None:
    service.engine_stats = EngineStats(running=2, waiting=3, pages_held=10, pages_cached=20, pages_free=70)

    assert sample(client, 'vllm:num_requests_running{model_name="fake"}') == 2
    assert sample(client, 'vllm:num_requests_waiting{model_name="fake"}') == 3
    assert sample(client, 'vllm:kv_cache_usage_perc{model_name="fake"}') == 0.1


def test_documentation_is_served(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    assert client.get("/redoc").status_code == 404
    assert all(operation["summary"] for path in paths.values() for operation in path.values())
    assert "422" not in paths["/v1/completions"]["post"]["responses"]
    assert "422" in paths["/generate"]["post"]["responses"]


def test_page_of_the_routes_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert 'fetch("openapi.json"' in page.text
    assert re.findall(r"https?://|//cdn|<link [^>]*stylesheet|<script[^>]* src", page.text) == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/tokenize"])
def test_every_field_of_a_body_is_described(client: TestClient, path: str) -> None:
    api = client.get("/openapi.json").json()
    name = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = api["components"]["schemas"][name.rpartition("/")[2]]["properties"]

    assert {field for field, schema in fields.items() if not schema.get("description")} == set()
