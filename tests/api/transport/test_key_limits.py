"""Limits of a key: what counts, what is refused until when, and that every end gives the place back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from legato.api.app import create_app
from legato.api.transport.key_limits import GENERATING_PATHS, KeyLimits
from legato.core.config import ServerConfig
from tests.api.asgi_call import AsgiCall
from tests.api.fake_service import FakeService

NOT_GENERATING = {
    "/tokenize",
    "/detokenize",
    "/abort_request",
    "/abort_requests",
    "/v1/messages/count_tokens",
    "/v1/requests/{request_id}/abort",
}
PATH = "/v1/completions"


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


class World:
    """Calls that end when the test says so, of clients whose tenant is the host of their address."""

    def __init__(self, *, max_at_once: int = 0, per_minute: int = 0) -> None:
        self.now = 100.0
        self.refusals: list[str] = []
        self.fails = False
        self._end = asyncio.Event()
        self._limits = KeyLimits(
            self._answer,
            max_at_once=max_at_once,
            per_minute=per_minute,
            on_refusal=self.refusals.append,
            clock=lambda: self.now,
        )

    async def call(self, tenant: str = "a", path: str = PATH) -> AsgiCall:
        """A call that was let in, and is open, or refused."""
        call = AsgiCall(self._identify, path, client=tenant)
        await asyncio.sleep(0)
        return call

    async def end_all(self) -> None:
        self._end.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._end.clear()

    async def _identify(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"tenant": scope["client"][0]}
        await self._limits(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._end.wait()
        if self.fails:
            raise RuntimeError("no answer")
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def status_of(call: AsgiCall) -> tuple[int, dict[str, str]]:
    start = await call.message()
    return start["status"], {str(name, "ascii"): str(value, "ascii") for name, value in start["headers"]}


@in_a_loop
async def test_calls_beyond_those_that_may_be_open_are_refused_until_one_ends() -> None:
    world = World(max_at_once=2)
    first, second = await world.call(), await world.call()
    status, headers = await status_of(await world.call())
    assert (status, headers["retry-after"], headers["retry-after-ms"]) == (429, "1", "1000")
    assert world.refusals == ["too_many_open_calls"]
    world.now += 11
    await world.end_all()
    assert [(await status_of(call))[0] for call in (first, second)] == [200, 200]
    third = await world.call()
    await world.end_all()
    assert (await status_of(third))[0] == 200


@in_a_loop
async def test_next_call_may_come_when_the_oldest_open_one_is_likely_to_end() -> None:
    async def told_s() -> float:
        _, headers = await status_of(await world.call())
        return int(headers["retry-after-ms"]) / 1000

    world = World(max_at_once=2)
    await world.call()
    world.now += 12
    await world.call()
    assert await told_s() == 6.0, "none has ended: half as long as the oldest has been open"
    world.now += 8
    await world.end_all()  # after 20 s and 8 s: a mean in which the latest counts a fifth

    await world.call()
    world.now += 2
    await world.call()
    assert await told_s() == pytest.approx(17.6 - 2, abs=0.002)
    world.now += 15
    assert await told_s() == 1.0, "the next one ends soon, and nobody is told to come back at once"
    world.now += 13
    assert await told_s() == 15.0, "the oldest has outlived the mean"
    await world.end_all()


@in_a_loop
async def test_a_key_does_not_count_the_calls_of_another() -> None:
    world = World(max_at_once=1, per_minute=1)
    calls = [await world.call(tenant) for tenant in ("a", "b", "a", "b")]
    await world.end_all()
    assert [(await status_of(call))[0] for call in calls] == [200, 200, 429, 429]


@in_a_loop
async def test_call_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    world = World(max_at_once=1)
    world.fails = True
    failing = await world.call()
    await world.end_all()
    with pytest.raises(RuntimeError, match="no answer"):
        await failing.task
    world.fails = False
    cancelled = await world.call()
    cancelled.task.cancel()
    await asyncio.wait([cancelled.task])
    last = await world.call()
    await world.end_all()
    assert (await status_of(last))[0] == 200
    assert world.refusals == []


@in_a_loop
async def test_minute_is_given_at_once_and_then_evenly() -> None:
    world = World(per_minute=40)  # one in 1.5 s
    for _ in range(40):
        await world.call()
    for wait_ms in (1500, 600):
        status, headers = await status_of(await world.call())
        assert (status, headers["retry-after-ms"]) == (429, str(wait_ms))
        assert headers["retry-after"] == str(-(-wait_ms // 1000))
        world.now += 0.9 if wait_ms == 1500 else 0.599
    status, headers = await status_of(await world.call())
    assert (status, headers["retry-after-ms"]) == (429, "1"), "a refused call costs nothing"
    world.now += 0.001
    accepted = await world.call()
    await world.end_all()
    assert (await status_of(accepted))[0] == 200
    assert world.refusals == ["too_many_calls_a_minute"] * 3


@in_a_loop
async def test_idle_hour_gives_no_more_than_a_minute() -> None:
    world = World(per_minute=3)
    world.now += 3600
    for _ in range(5):
        await world.call()
    assert len(world.refusals) == 2
    await world.end_all()


@in_a_loop
async def test_other_routes_neither_count_nor_are_refused() -> None:
    world = World(max_at_once=1, per_minute=1)
    calls = [await world.call(path=path) for path in ("/tokenize", "/v1/models", PATH, "/tokenize")]
    await world.end_all()
    assert [(await status_of(call))[0] for call in calls] == [200] * 4


def test_every_route_that_generates_counts(app: FastAPI) -> None:
    posts = {path for path, methods in app.openapi()["paths"].items() if "post" in methods}
    assert posts - NOT_GENERATING == GENERATING_PATHS


@pytest.fixture
def limited(service: FakeService) -> TestClient:
    server = ServerConfig(api_key=("alpha", "beta"), requests_per_minute_per_key=1)
    return TestClient(create_app({"fake": service}, server))


def test_refusal_has_the_shape_of_its_api_and_is_counted(limited: TestClient) -> None:
    alpha, beta = ({"authorization": f"Bearer {key}"} for key in ("alpha", "beta"))
    body = {"prompt": "hello"}
    assert limited.post(PATH, json=body, headers=alpha).status_code == 200
    refused = limited.post(PATH, json=body, headers=alpha)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_exceeded", "too_many_calls_a_minute")
    assert error["message"].startswith("this key may make 1 calls a minute; the next one in ")
    assert limited.post("/v1/messages", json={}, headers=alpha).json()["error"]["type"] == "rate_limit_error"
    assert limited.post(PATH, json=body, headers=beta).status_code == 200

    lines = limited.get("/metrics", headers=alpha).text.splitlines()
    for prefix in ("legato_", "vllm:"):
        labels = '{model_name="fake",reason="too_many_calls_a_minute"}'
        assert f"{prefix}admission_rejections_total{labels} 2.0" in lines


def test_without_keys_all_clients_share_the_limits(service: FakeService) -> None:
    client = TestClient(create_app({"fake": service}, ServerConfig(requests_per_minute_per_key=1)))
    answers = [client.post(path, json={"prompt": "a"}) for path in (PATH, "/basic_generate")]
    assert [answer.status_code for answer in answers] == [200, 429]
    told = answers[1].json()["error"]["message"]
    assert told.startswith("all clients of this server together may make 1 calls a minute; the next one in ")


@in_a_loop
async def test_client_that_leaves_gives_its_place_back(service: FakeService) -> None:
    service.generator.pause_after = 1
    app: ASGIApp = create_app({"fake": service}, ServerConfig(max_requests_per_key=1))
    for is_streamed in (True, False):
        call = AsgiCall(app, PATH, {"prompt": "a", "stream": is_streamed})
        if is_streamed:
            assert (await call.message())["status"] == 200
        call.leave()
        await asyncio.wait_for(call.task, 10)
    service.generator.pause_after = None
    last = AsgiCall(app, PATH, {"prompt": "a"})
    assert (await last.message())["status"] == 200
    await last.task


def test_keys_of_a_file_open_the_door_and_stand_in_no_answer_or_log(
    service: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "keys"
    path.write_text("alpha-secret\nbeta-secret\n")
    server = ServerConfig(api_key_file=str(path), requests_per_minute_per_key=1, enable_log_requests=True)
    client = TestClient(create_app({"fake": service}, server))
    headers = {"authorization": "Bearer alpha-secret"}
    answers = [
        client.get("/v1/models"),
        client.get("/stats", headers=headers),
        client.post(PATH, json={"prompt": "a"}, headers=headers),
        client.post(PATH, json={"prompt": "a"}, headers=headers),
        client.get("/v1/models", headers={"authorization": "Bearer beta-secre"}),
        client.get("/metrics", headers={"x-api-key": "beta-secret"}),
    ]
    assert [answer.status_code for answer in answers] == [401, 200, 200, 429, 401, 200]
    texts = [caplog.text, *(f"{answer.headers} {answer.text}" for answer in answers)]
    assert not any("secret" in text or "beta-secre" in text for text in texts)
