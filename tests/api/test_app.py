"""The app as its users run it: without a lifespan, with one, behind a socket, with OpenAI's client."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import openai
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from legato.core.errors import ModelError
from tests.api.fake_service import FakeService
from tests.api.sse_events import events_of
from tests.fakes import FakeGenerator


@pytest.fixture
def port(app: FastAPI) -> Iterator[int]:
    """A real server on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def sdk(port: int) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_without_a_lifespan_the_first_request_starts_the_engine(app: FastAPI, service: FakeService) -> None:
    client = TestClient(app)  # no `with`: each request brings an event loop of its own
    body = {"prompt": "abc"}

    assert client.get("/health").status_code == 200
    assert service.num_starts == 0
    assert [client.post("/v1/completions", json=body).status_code for _ in range(3)] == [200, 200, 200]
    with ThreadPoolExecutor(2) as pool:
        texts = pool.map(
            lambda _: client.post("/v1/completions", json=body | {"stream": True}).text, range(2)
        )
    assert ["".join(e["choices"][0]["text"] for e in events_of(text)[:-1]) for text in texts] == [
        "abc",
        "abc",
    ]
    assert service.num_starts == 5


def test_lifespan_starts_and_closes_each_service_once(
    app: FastAPI, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with TestClient(app) as client:
        assert client.get("/health").status_code == 200
        assert (service.num_starts, service.num_closes) == (1, 0)
    assert service.num_closes == 1
    assert caplog.text.count("ready: fake, ") == 1


def test_model_that_cannot_be_loaded_leaves_the_server_up_to_say_so(
    app: FastAPI, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.start_error = ModelError("no such model; legato models pull NAME brings it")

    with TestClient(app) as client:
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert client.get("/health").status_code == 200

    assert response.status_code == 503
    assert response.json()["error"]["message"] == "no such model; legato models pull NAME brings it"
    assert "fake cannot be served: no such model" in caplog.text


def test_two_apps_share_nothing() -> None:
    clients = [TestClient(create_app({"fake": FakeService()}, ServerConfig())) for _ in range(2)]
    clients[0].post("/v1/completions", json={"prompt": "a"})

    totals = [
        line
        for client in clients
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("legato_requests_accepted_total")
    ]

    assert [line.split()[-1] for line in totals] == ["1.0", "0.0"]


def test_requests_go_to_the_model_they_name() -> None:
    services = {name: FakeService(FakeGenerator(output=name), names=(name,)) for name in ("one", "two")}
    client = TestClient(create_app(services, ServerConfig()))

    texts = {
        name: client.post("/v1/completions", json={"prompt": "a", "model": name}).json()["choices"][0]["text"]
        for name in (None, "one", "two")
    }

    assert texts == {None: "one", "one": "one", "two": "two"}


def test_openai_sdk_plain_and_streamed(sdk: openai.OpenAI, generator: FakeGenerator) -> None:
    generator.output = "Paris é 한국어"
    messages = [{"role": "user", "content": "hi"}]

    plain = sdk.chat.completions.create(model="fake", messages=messages)  # type: ignore[call-overload]
    chunks = list(
        sdk.chat.completions.create(  # type: ignore[call-overload]
            model="fake", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    completion = sdk.completions.create(model="fake", prompt=["a", "b"], max_tokens=3)

    assert plain.choices[0].message.content == "Paris é 한국어"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Paris é 한국어"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == plain.usage
    assert [choice.text for choice in completion.choices] == ["Par", "Par"]
    assert [model.id for model in sdk.models.list()] == ["fake", "fake-alias"]


def test_openai_sdk_raises_on_what_goes_wrong(sdk: openai.OpenAI, generator: FakeGenerator) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here"):
        sdk.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.completions.create(model="fake", prompt="a", suffix="b")
    assert refusal.value.param == "suffix"
    generator.failure, generator.fail_after = RuntimeError("boom"), 1
    with pytest.raises(openai.APIError, match="server failed"):
        list(sdk.completions.create(model="fake", prompt="abc", stream=True))


@pytest.mark.parametrize("stream", ["true", "false"])
def test_socket_that_closes_ends_the_request(port: int, generator: FakeGenerator, stream: str) -> None:
    generator.pause_after = 1
    body = f'{{"prompt": "abc", "stream": {stream}}}'.encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def run() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        async with asyncio.timeout(10):
            while not generator.submissions:
                await asyncio.sleep(0.005)
            writer.close()
            while generator.num_aborted == 0:
                await asyncio.sleep(0.005)

    asyncio.run(run())
    assert generator.num_aborted == 1
