"""The streaming contract: one path for both modes, events that clients can trust, an end to every stream."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import Message

from legato.api.sse import PING, EventStream, encode_event
from legato.core.errors import EngineDiedError
from legato.core.sampling_params import SamplingParams
from tests.api.asgi_call import AsgiCall
from tests.api.sse_events import events_of
from tests.fakes import FakeGenerator

USER = {"role": "user", "content": "hi"}
RARE = "🧑‍🚀 é 한국어 𠮷"


def stream(client: TestClient, path: str, body: dict[str, Any]) -> list[Any]:
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(response.text)


def chat_text(events: list[Any]) -> str:
    return "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1] if e["choices"])


def completion_text(events: list[Any]) -> str:
    return "".join(e["choices"][0]["text"] for e in events[:-1] if e["choices"])


def test_role_comes_with_the_first_text_and_the_reason_with_the_last(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "abc"

    events = stream(client, "/v1/chat/completions", {"messages": [USER]})

    assert [event["choices"][0]["delta"] for event in events[:-1]] == [
        {"role": "assistant", "content": "a"},
        {"content": "b"},
        {"content": "c"},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "stop"]
    assert events[-1] == "[DONE]"
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events[:-1]}) == 1


def test_answer_without_text_is_one_chunk_with_role_and_reason(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = ""

    events = stream(client, "/v1/chat/completions", {"messages": [USER]})

    [choice] = events[0]["choices"]
    assert choice["delta"] == {"role": "assistant", "content": ""}
    assert choice["finish_reason"] == "stop"
    assert events[1:] == ["[DONE]"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("tokens_per_delta", [1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 9},
        {"max_tokens": 1},
        {"stop": "한국"},
        {"stop": ["zzz", "국어 𠮷 "]},
        {"max_tokens": 12, "stop": "é"},
    ],
)
def test_joined_stream_equals_the_plain_answer(
    client: TestClient, generator: FakeGenerator, path: str, tokens_per_delta: int, options: dict[str, Any]
) -> None:
    generator.output = RARE
    generator.tokens_per_delta = tokens_per_delta
    generator.cached_tokens = 1
    prompt = {"prompt": "p"} if path == "/v1/completions" else {"messages": [USER]}

    plain = client.post(path, json={**prompt, "max_tokens": 99, **options}).json()
    events = stream(
        client, path, {"max_tokens": 99, **prompt, **options, "stream_options": {"include_usage": True}}
    )

    choice = plain["choices"][0]
    if path == "/v1/completions":
        assert completion_text(events) == choice["text"]
    else:
        assert chat_text(events) == choice["message"]["content"]
    reasons = [e["choices"][0]["finish_reason"] for e in events[:-1] if e["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + [choice["finish_reason"]]
    assert events[-2]["usage"] == plain["usage"]


def test_no_delta_ends_in_a_partial_character_and_none_but_the_last_is_empty(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = RARE

    events = stream(client, "/v1/completions", {"prompt": "p", "max_tokens": 99})

    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == RARE
    assert all(texts[:-1])
    assert "\ufffd" not in "".join(texts)


def test_start_of_a_stop_text_is_held_back_and_flushed_when_it_does_not_complete(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "one tw"

    texts = [
        event["choices"][0]["text"]
        for event in stream(client, "/v1/completions", {"prompt": "p", "stop": " two"})[:-1]
    ]

    assert texts == ["o", "n", "e", " tw"]


def test_usage_chunk_comes_only_when_asked_for_just_before_done(client: TestClient) -> None:
    body = {"prompt": "abc"}
    asked = stream(client, "/v1/completions", body | {"stream_options": {"include_usage": True}})
    not_asked = stream(client, "/v1/completions", body)

    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["total_tokens"] == 6
    assert all("usage" not in event for event in asked[:-2])
    assert all("usage" not in event for event in not_asked[:-1])
    assert len(asked) == len(not_asked) + 1


def test_continuous_usage_grows_with_each_chunk(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    events = stream(client, "/v1/completions", {"prompt": "abc", "stream_options": options})

    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 3]


def test_prompts_of_one_stream_keep_their_indexes(client: TestClient) -> None:
    options = {"include_usage": True}

    events = stream(client, "/v1/completions", {"prompt": ["a", "bb", "ccc"], "stream_options": options})

    texts = {0: "", 1: "", 2: ""}
    reasons: list[int] = []
    for event in events[:-2]:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"]
        reasons += [choice["index"]] if choice["finish_reason"] else []
    assert texts == {0: "a", 1: "bb", 2: "ccc"}
    assert sorted(reasons) == [0, 1, 2]
    assert events[-2]["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 6,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_failure_midway_is_an_error_event_then_done(client: TestClient, generator: FakeGenerator) -> None:
    generator.failure, generator.fail_after = EngineDiedError("the engine ended"), 2

    events = stream(client, "/v1/completions", {"prompt": "abcdef"})

    assert completion_text([*events[:2], "end"]) == "ab"
    assert events[2] == {
        "error": {
            "message": "the engine ended",
            "type": "service_unavailable",
            "param": None,
            "code": "engine_died",
        }
    }
    assert events[3:] == ["[DONE]"]
    assert generator.num_aborted == 1


def test_unforeseen_failure_midway_tells_nothing_internal(
    client: TestClient, generator: FakeGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    generator.failure = RuntimeError("secret of the house")

    response = client.post("/v1/completions", json={"prompt": "abc", "stream": True})

    assert "secret" not in response.text
    assert events_of(response.text)[0]["error"]["code"] == "internal_error"
    assert "secret of the house" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


def test_head_goes_out_before_the_first_token(app: FastAPI, generator: FakeGenerator) -> None:
    generator.pause_after = 0

    async def run() -> None:
        call = AsgiCall(app, "/v1/completions", {"prompt": "ab", "stream": True})
        head = await call.message()
        assert head["status"] == 200
        assert call.num_unread == 0
        generator.resumed.set()
        assert '"text":"a"' in await call.text()
        await call.task

    asyncio.run(run())


def test_heartbeat_fills_the_silence() -> None:
    async def run() -> list[bytes]:
        generator = FakeGenerator()
        released = asyncio.Event()

        async def payloads() -> Any:
            await released.wait()
            yield {"n": 1}

        sent: list[bytes] = []

        async def send(message: Message) -> None:
            body = message.get("body", b"")
            sent.append(body)
            if sent.count(PING) == 2:
                released.set()

        source = await generator.submit(["a"], SamplingParams())
        response = EventStream(payloads(), source, heartbeat_s=0.001)
        await response({"type": "http", "state": {"request_id": "r"}}, asyncio.Event().wait, send)
        return sent

    sent = asyncio.run(run())
    assert PING == b": ping\n\n"
    assert [body for body in sent if body not in (b"", PING)] == [b'data: {"n":1}\n\n', b"data: [DONE]\n\n"]
    assert sent.count(PING) >= 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_client_that_leaves_ends_its_requests(
    app: FastAPI, generator: FakeGenerator, path: str, stream: bool
) -> None:
    generator.pause_after = 2
    bodies = {
        "/v1/completions": {"prompt": ["abcdef", "ghi"], "stream": stream},
        "/v1/chat/completions": {"messages": [USER], "stream": stream},
        "/generate": {"prompts": ["abcdef", "ghi"]},
    }

    async def run() -> None:
        call = AsgiCall(app, path, bodies[path])
        if stream and path != "/generate":
            assert (await call.message())["type"] == "http.response.start"
            await call.text()
        else:
            while not generator.submissions:
                await asyncio.sleep(0)
        assert generator.num_aborted == 0
        call.leave()
        await asyncio.wait_for(call.task, 5)

    asyncio.run(run())
    assert generator.num_aborted == (1 if path == "/v1/chat/completions" else 2)


@pytest.mark.parametrize("stream", [False, True])
def test_cancelled_server_task_still_aborts(app: FastAPI, generator: FakeGenerator, stream: bool) -> None:
    generator.pause_after = 1

    async def run() -> None:
        call = AsgiCall(app, "/v1/completions", {"prompt": "abc", "stream": stream})
        while not generator.submissions:
            await asyncio.sleep(0)
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task

    asyncio.run(run())
    assert generator.num_aborted == 1


def test_client_that_breaks_while_we_write_ends_its_request(generator: FakeGenerator) -> None:
    async def run() -> None:
        source = await generator.submit(["abc"], SamplingParams())

        async def payloads() -> Any:
            async for delta in source:
                yield {"text": delta.text}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("connection lost")

        response = EventStream(payloads(), source)
        await response({"type": "http", "state": {"request_id": "r"}}, asyncio.Event().wait, send)

    asyncio.run(run())
    assert generator.num_aborted == 1


def test_an_event_stands_on_one_line_for_every_notion_of_a_line() -> None:
    event = encode_event({"text": "a\nb\r\x0b\x0c\x1c\x85\u2028\u2029 한국어"}).decode()

    assert len(event.splitlines()) == 2  # the event and the blank line after it
    assert "한국어" in event
    assert events_of(event) == [{"text": "a\nb\r\x0b\x0c\x1c\x85\u2028\u2029 한국어"}]
