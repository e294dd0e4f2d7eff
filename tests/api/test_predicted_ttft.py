"""Clients hear when their first token is predicted to come, and are refused when that is too late."""

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from legato.core.errors import SlowFirstTokenError
from legato.ipc.prediction.first_token import FirstToken
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator

HEADER = "x-legato-predicted-ttft-ms"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/completions", {"prompt": "hi", "stream": True}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/responses", {"input": "hi", "stream": True}),
    ("/v1/messages", CHAT | {"max_tokens": 4}),
    ("/v1/messages", CHAT | {"max_tokens": 4, "stream": True}),
    ("/basic_generate", {"prompt": "hi"}),
    ("/generate", {"prompts": ["hi"]}),
    ("/generate_stream", {"prompt": "hi"}),
]


def metric(client: TestClient, series: str) -> float:
    [line] = [each for each in client.get("/metrics").text.splitlines() if each.startswith(series + " ")]
    return float(line.split()[-1])


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_every_generating_answer_tells_what_was_predicted(
    client: TestClient, generator: FakeGenerator, path: str, body: dict[str, Any]
) -> None:
    generator.first_token_at = time.perf_counter() + 1000

    answer = client.post(path, json=body)

    assert answer.status_code == 200
    assert 900_000 < int(answer.headers[HEADER]) <= 1_000_000


def test_nothing_is_told_where_nothing_is_predicted(client: TestClient) -> None:
    assert HEADER not in client.post("/v1/completions", json={"prompt": "hi"}).headers
    assert HEADER not in client.get("/health").headers


def test_limit_counts_from_the_arrival(service: FakeService, generator: FakeGenerator) -> None:
    client = TestClient(create_app({"fake": service}, ServerConfig(ttft_limit_s=1000)))
    before = time.perf_counter()
    client.post("/v1/completions", json={"prompt": "hi"})
    by = generator.submissions[0]["first_token_by"]
    assert before + 1000 <= by <= time.perf_counter() + 1000


def test_without_a_limit_nobody_is_refused(client: TestClient, generator: FakeGenerator) -> None:
    client.post("/v1/completions", json={"prompt": "hi"})
    assert "first_token_by" not in generator.submissions[0]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_refusal_tells_when_to_come_back(
    client: TestClient, generator: FakeGenerator, path: str, body: dict[str, Any]
) -> None:
    generator.refusal = SlowFirstTokenError(
        "too late", retry_after_s=2.5, first_token_at=time.perf_counter() + 1000
    )

    answer = client.post(path, json=body)

    assert answer.status_code == 429
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2500")
    assert int(answer.headers[HEADER]) > 900_000
    if path != "/v1/messages":
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("overloaded", "ttft_limit")
    series = 'legato_admission_rejections_total{model_name="fake",reason="ttft_limit"}'
    assert metric(client, series) == 1


def test_prediction_is_measured_against_what_came_true(client: TestClient, generator: FakeGenerator) -> None:
    generator.first_token_at = time.perf_counter() + 1000
    client.post("/v1/completions", json={"prompt": ["a", "b"]})

    name = "legato_time_to_first_token_prediction_ratio"
    assert metric(client, f'{name}_count{{model_name="fake"}}') == 1  # of the call's first answer
    assert metric(client, f'{name}_bucket{{le="0.1",model_name="fake"}}') == 1
    assert "vllm:time_to_first_token_prediction_ratio" not in client.get("/metrics").text


@pytest.mark.parametrize(
    ("predicted", "status"),
    [
        (None, 200),
        (FirstToken(1.9, alone_s=0.1), 200),
        (FirstToken(4.5, alone_s=0.1, retry_s=7.2), 503),
        (FirstToken(4.5, alone_s=4.5), 200),  # nobody else is served, and nobody is refused
    ],
    ids=["unknown", "soon", "late", "late by itself"],
)
def test_server_is_not_ready_where_even_the_shortest_prompt_would_be_refused(
    service: FakeService, predicted: FirstToken | None, status: int
) -> None:
    client = TestClient(create_app({"fake": service}, ServerConfig(ttft_limit_s=2)))
    service.predicted = predicted

    answer = client.get("/ready")

    assert answer.status_code == status
    if status == 503:
        assert answer.json()["stage"] == "overloaded"
        assert (answer.json()["retry_after_s"], answer.headers["retry-after"]) == (7.2, "8")
        assert client.get("/health").status_code == 200


def test_without_a_limit_no_prediction_makes_a_server_unready(
    client: TestClient, service: FakeService
) -> None:
    service.predicted = FirstToken(1e6, alone_s=0.1, retry_s=7.2)
    assert client.get("/ready").status_code == 200
