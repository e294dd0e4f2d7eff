"""/generate_vllm against a small OpenAI server of the standard library."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.api.routes.vllm_proxy import MAX_CALLS, VllmProxy
from legato.core.config import ServerConfig
from legato.core.errors import OverloadedError
from legato.core.sampling_params import SamplingParams
from tests.api.fake_service import FakeService


class VllmLike:
    """An OpenAI server that answers each prompt with its upper case, the choices in reverse order."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.answer: Any = None  # instead of the usual one
        self.may_answer = Event()
        self.may_answer.set()
        vllm = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "big-model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                vllm.bodies.append(body)
                vllm.may_answer.wait(20)
                choices = [{"index": i, "text": p.upper()} for i, p in enumerate(body["prompt"])]
                self.reply(vllm.status, vllm.answer or {"choices": choices[::-1]})

            def reply(self, status: int, answer: Any) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def vllm() -> Iterator[VllmLike]:
    vllm = VllmLike()
    thread = Thread(target=vllm.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield vllm
    vllm.server.shutdown()
    thread.join()
    vllm.server.server_close()


def client_of(url: str) -> TestClient:
    return TestClient(create_app({"fake": FakeService()}, ServerConfig(vllm_url=url)))


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_continuations_come_from_vllm_in_the_order_of_the_prompts(vllm: VllmLike, suffix: str) -> None:
    response = client_of(vllm.url + suffix).post("/generate_vllm", json={"prompts": ["a", "b"]})

    assert response.json() == {"generated_texts": ["A", "B"]}
    assert vllm.bodies == [
        {
            "model": "big-model",
            "prompt": ["a", "b"],
            "max_tokens": 20,
            "temperature": 0.7,
            "top_p": 0.95,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
    ]


def test_fields_of_the_body_reach_vllm(vllm: VllmLike) -> None:
    body = {"prompts": ["a"], "max_tokens": 3, "top_k": 5, "seed": 0, "stop": "x", "logit_bias": {"7": 1}}

    client_of(vllm.url).post("/generate_vllm", json=body)

    [sent] = vllm.bodies
    assert (sent["max_tokens"], sent["top_k"], sent["seed"]) == (3, 5, 0)
    assert (sent["stop"], sent["logit_bias"]) == (["x"], {"7": 1.0})


@pytest.mark.parametrize(
    ("status", "answer", "expected", "reason"),
    [
        (400, {"error": "prompt too long"}, 400, "prompt too long"),
        (500, {"error": "broken"}, 503, "status 500"),
        (200, {"choices": []}, 503, "0 answers to 1 prompts"),
        (200, {"text": "a"}, 503, "does not answer like OpenAI's"),
        (200, ["a"], 503, "does not answer like OpenAI's"),
    ],
)
def test_failures_of_vllm_are_told(
    vllm: VllmLike, status: int, answer: Any, expected: int, reason: str
) -> None:
    vllm.status, vllm.answer = status, answer

    response = client_of(vllm.url).post("/generate_vllm", json={"prompts": ["a"]})

    assert response.status_code == expected
    assert reason in response.json()["error"]["message"]


def test_vllm_that_is_not_there_is_503_with_the_remedy() -> None:
    response = client_of("http://127.0.0.1:9").post("/generate_vllm", json={"prompts": ["a"]})

    assert response.status_code == 503
    assert "--vllm-url" in response.json()["error"]["message"]


def test_calls_have_bounded_places_and_who_leaves_gives_one_back(vllm: VllmLike) -> None:
    proxy = VllmProxy(vllm.url)

    async def ask() -> list[str]:
        return await proxy.complete(["a"], SamplingParams())

    async def main() -> None:
        vllm.may_answer.clear()
        calls = [asyncio.create_task(ask()) for _ in range(MAX_CALLS)]
        async with asyncio.timeout(20):
            while len(vllm.bodies) < MAX_CALLS:
                await asyncio.sleep(0.005)
            with pytest.raises(OverloadedError, match="under way"):
                await ask()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            while proxy._places._value < MAX_CALLS:  # type: ignore[attr-defined]
                await asyncio.sleep(0.005)  # though vLLM has not answered
            vllm.may_answer.set()
            assert await ask() == ["A"]

    asyncio.run(main())
