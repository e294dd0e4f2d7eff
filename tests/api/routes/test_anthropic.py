"""/v1/messages: what it takes, what it refuses, Anthropic's errors, and the official client on top."""

import asyncio
from typing import Any

import anthropic
import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from legato.core.errors import EngineDiedError, NotReadyError, OverloadedError
from tests.api.asgi_call import AsgiCall
from tests.api.fake_service import FakeService
from tests.api.sse_events import named_events_of
from tests.fakes import FakeGenerator

PATH = "/v1/messages"
USER = {"role": "user", "content": "hi"}
BODY = {"model": "fake", "max_tokens": 50, "messages": [USER]}


@pytest.fixture
def sdk(client: TestClient) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url="http://testserver", api_key="none", max_retries=0, http_client=client
    )


def prompt_of(generator: FakeGenerator) -> str:
    return bytes(generator.submissions[-1]["prompts"][0]).decode()


def blocks(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def refusal(
    client: TestClient, body: dict[str, Any], *, path: str = PATH, status: int = 400
) -> dict[str, str]:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    answer = response.json()
    assert set(answer) == {"type", "error"}
    assert answer["type"] == "error"
    assert set(answer["error"]) == {"type", "message"}
    error: dict[str, str] = answer["error"]
    return error


def test_answer_is_a_message(client: TestClient, generator: FakeGenerator) -> None:
    generator.output, generator.cached_tokens = "Paris", 16

    response = client.post(PATH, json=BODY | {"system": "Be brief."})

    answer = response.json()
    assert prompt_of(generator) == "<system>Be brief.<user>hi<assistant>"
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Paris"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 20,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 16,
            "output_tokens": 5,
        },
    }
    assert response.headers["request-id"] == response.headers["x-request-id"]


def test_blocks_of_text_are_joined(client: TestClient, generator: FakeGenerator) -> None:
    system = [
        {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief."},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
        USER,
    ]  # fmt: skip

    client.post(PATH, json=BODY | {"system": system, "messages": messages})

    assert prompt_of(generator) == "<system>Be brief.<user>ab<assistant>c<user>hi<assistant>"


def test_stop_sequences_end_the_answer_and_are_named(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = "one two three"

    answer = client.post(PATH, json=BODY | {"stop_sequences": [" th", " tw"]}).json()

    assert answer["content"] == [{"type": "text", "text": "one"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " tw")


def test_sampling_fields_reach_the_engine(client: TestClient, generator: FakeGenerator) -> None:
    client.post(
        PATH, json=BODY | {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "metadata": {"user_id": "u"}}
    )

    params = generator.submissions[-1]["params"]
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 7, 50)


def test_what_is_not_read_is_named_and_hints_are_not(client: TestClient) -> None:
    hint = {"cache_control": {"type": "ephemeral"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"} | hint]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "b"}]},
        USER,
    ]

    response = client.post(PATH, json=BODY | hint | {"messages": messages, "thinking": {"type": "adaptive"}})

    ignored = "messages.content.signature,messages.content.thinking,thinking"
    assert response.headers["x-legato-ignored"] == ignored
    off = client.post(PATH, json=BODY | {"thinking": {"type": "disabled"}, "service_tier": "standard_only"})
    assert not {"x-legato-ignored", "x-legato-adjusted"} & set(off.headers)
    assert "mcp_servers" in refusal(client, BODY | {"mcp_servers": [{}]})["message"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [USER, "hi"]}, "messages.1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [blocks("user", {"type": "image", "source": {}})]}, "messages.0.content.0.type"),
        ({"messages": [blocks("user", {"type": "text"})]}, "messages.0.content.0.text"),
        ({"messages": [USER, blocks("assistant", {"type": "tool_result"})]}, "messages.1.content.0.type"),
        ({"messages": [blocks("user", {"type": "tool_result"})]}, "messages.0.content.0.tool_use_id"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"stop_sequences": [""]}, "stop"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"temperature": 9}, "temperature"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "context"),
    ],
)  # fmt: skip
def test_faults_are_named_in_anthropics_shape(client: TestClient, change: dict[str, Any], place: str) -> None:
    error = refusal(client, BODY | change)
    assert error["type"] == "invalid_request_error"
    assert place in error["message"]


@pytest.mark.parametrize(
    ("refusal_", "status", "type_"),
    [
        (OverloadedError("the queue is full", retry_after_s=2), 429, "rate_limit_error"),
        (NotReadyError("still loading", retry_after_s=2), 503, "overloaded_error"),
        (NotReadyError("gone for good", retry_after_s=None), 503, "api_error"),
        (EngineDiedError("the engine ended"), 503, "api_error"),
        (RuntimeError("secret of the house"), 500, "api_error"),
    ],
)
def test_each_kind_of_error_has_anthropics_type(
    app: FastAPI, generator: FakeGenerator, refusal_: Exception, status: int, type_: str
) -> None:
    generator.refusal = refusal_
    client = TestClient(app, raise_server_exceptions=False)
    error = refusal(client, BODY, status=status)
    assert error["type"] == type_
    assert "secret" not in error["message"]


def test_faults_before_any_route_have_the_shape_too(client: TestClient) -> None:
    assert refusal(client, BODY | {"model": "other"}, status=404)["type"] == "not_found_error"
    assert refusal(client, BODY, path=f"{PATH}/batches", status=404)["type"] == "not_found_error"
    assert client.get(PATH).json()["error"]["type"] == "invalid_request_error"
    assert client.post(PATH, content=b"{").json()["type"] == "error"
    assert refusal(client, {"x": "y" * 2**23}, status=413)["type"] == "request_too_large"


def test_key_is_taken_from_either_header(service: FakeService) -> None:
    client = TestClient(create_app({"fake": service}, ServerConfig(api_key=("alpha",))))

    for headers in ({"x-api-key": "alpha"}, {"authorization": "Bearer alpha"}):
        assert client.post(PATH, json=BODY, headers=headers).status_code == 200
    for headers in ({}, {"x-api-key": "beta"}, {"x-api-key": ""}, {"authorization": "alpha"}):
        response = client.post(PATH, json=BODY, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("tokens_per_delta", [1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 9},
        {"max_tokens": 1},
        {"stop_sequences": ["한국"]},
        {"stop_sequences": ["국어 𠮷 "]},
    ],
)
def test_stream_builds_the_message_that_a_plain_call_gives(
    client: TestClient, generator: FakeGenerator, options: dict[str, Any], tokens_per_delta: int
) -> None:
    generator.output = "🧑‍🚀 é 한국어 𠮷"
    generator.tokens_per_delta = tokens_per_delta

    events = named_events_of(client.post(PATH, json=BODY | options | {"stream": True}).text)
    plain = client.post(PATH, json=BODY | options).json()

    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == plain["content"][0]["text"]
    assert all(deltas)
    assert events[-2]["delta"] == {name: plain[name] for name in ("stop_reason", "stop_sequence")}
    assert events[-2]["usage"] == plain["usage"]


def test_nothing_but_the_head_goes_out_before_the_first_token(app: FastAPI, generator: FakeGenerator) -> None:
    generator.pause_after = 0

    async def run() -> None:
        call = AsgiCall(app, PATH, BODY | {"stream": True})
        assert (await call.message())["status"] == 200
        assert call.num_unread == 0
        generator.resumed.set()
        assert "event: message_start\n" in await call.text()
        await call.task

    asyncio.run(run())


def test_failure_midway_is_an_error_event_and_the_end(client: TestClient, generator: FakeGenerator) -> None:
    generator.failure, generator.fail_after = EngineDiedError("the engine ended"), 2

    events = named_events_of(client.post(PATH, json=BODY | {"stream": True}).text)

    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "the engine ended"}}


def test_tokens_are_counted_as_they_will_be_used(client: TestClient) -> None:
    body = {"model": "fake", "messages": [USER], "system": "Be brief."}

    count = client.post(f"{PATH}/count_tokens", json=body).json()

    used = client.post(PATH, json=body | {"max_tokens": 5}).json()["usage"]["input_tokens"]
    assert count == {"input_tokens": used}
    assert refusal(client, {"messages": []}, path=f"{PATH}/count_tokens")["type"] == "invalid_request_error"


def test_official_client_reads_answers_streams_counts_and_errors(
    sdk: anthropic.Anthropic, generator: FakeGenerator
) -> None:
    request: Any = {"model": "fake", "messages": [USER], "max_tokens": 64}
    plain = sdk.messages.create(**request)
    assert plain.content[0].type == "text"
    assert plain.content[0].text == "<user>hi<assistant>"
    with sdk.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == plain.content[0].text
    assert final.usage == plain.usage
    assert final.stop_reason == "end_turn"
    types = [event.type for event in sdk.messages.create(**request, stream=True)]
    assert (types[0], types[-1]) == ("message_start", "message_stop")
    assert sdk.messages.count_tokens(model="fake", messages=[USER]).input_tokens == plain.usage.input_tokens
    with pytest.raises(anthropic.NotFoundError) as missing:
        sdk.messages.create(**request | {"model": "other"})
    assert missing.value.request_id
    generator.failure = EngineDiedError("the engine ended")
    with (
        pytest.raises(anthropic.APIStatusError, match="the engine ended"),
        sdk.messages.stream(**request) as stream,
    ):
        stream.until_done()


def test_official_client_works_asynchronously(app: FastAPI, generator: FakeGenerator) -> None:
    generator.output = "Paris"
    request: Any = {"model": "fake", "messages": [USER], "max_tokens": 9}

    async def run() -> tuple[Any, Any]:
        transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        async with anthropic.AsyncAnthropic(
            base_url="http://localhost", auth_token="none", http_client=transport
        ) as sdk:
            plain = await sdk.messages.create(**request)
            async with sdk.messages.stream(**request) as stream:
                return plain, await stream.get_final_message()

    plain, final = asyncio.run(run())
    assert [block.text for block in (*plain.content, *final.content)] == ["Paris", "Paris"]


def test_a_last_message_of_the_assistants_is_the_beginning_of_the_answer(
    client: TestClient, generator: FakeGenerator
) -> None:
    messages = [USER, {"role": "assistant", "content": "The capital is"}]

    client.post(PATH, json=BODY | {"messages": messages})

    assert prompt_of(generator) == "<user>hi<assistant>The capital is+"  # + stands for "go on"
    count = client.post(f"{PATH}/count_tokens", json={"messages": messages}).json()
    assert count == {"input_tokens": len("<user>hi<assistant>The capital is+")}


WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.mark.parametrize("tokens_per_delta", [1, 5, 99])
def test_calls_are_blocks_that_a_client_can_send_back(
    sdk: anthropic.Anthropic, generator: FakeGenerator, tokens_per_delta: int
) -> None:
    generator.output, generator.tokens_per_delta = f"Let me look. {CALL}", tokens_per_delta
    request: Any = {"model": "fake", "max_tokens": 200, "messages": [USER], "tools": [WEATHER]}

    plain = sdk.messages.create(**request)
    with sdk.messages.stream(**request) as stream:
        streamed = stream.get_final_message()

    for message in (plain, streamed):
        text, call = message.content
        assert message.stop_reason == "tool_use"
        assert text.type == "text"
        assert text.text == "Let me look."
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("weather", {"city": "Paris"})
    called: Any = plain.content[1]
    result = {"type": "tool_result", "tool_use_id": called.id, "content": "rain", "is_error": True}
    turn = blocks("user", result, {"type": "text", "text": "Well?"})
    request["messages"] = [USER, {"role": "assistant", "content": plain.content}, turn]
    sdk.messages.create(**request)
    expected = "<weather><user>hi<assistant>Let me look.<tool>Error: rain<user>Well?<assistant>"
    assert prompt_of(generator) == expected
    del request["max_tokens"]
    assert sdk.messages.count_tokens(**request).input_tokens == len(expected)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [WEATHER | {"name": "a b"}]}, "tools.0.name"),
        ({"tools": [{"name": "weather"}]}, "tools.0.input_schema"),
        ({"tools": [WEATHER | {"input_schema": {"type": "array"}}]}, "tools.0.input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "often"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "time"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice"),
        (
            {"messages": [blocks("user", {"type": "tool_result", "tool_use_id": "x"})]},
            "messages.0.content.0.tool_use_id",
        ),
        (
            {"messages": [USER, blocks("assistant", {"type": "tool_use", "id": "a", "name": "b"})]},
            "messages.1.content.0.input",
        ),
    ],
)
def test_faults_of_tools_are_named(client: TestClient, fields: dict[str, Any], place: str) -> None:
    assert place in refusal(client, BODY | fields)["message"]


def test_form_of_the_output_reaches_the_engine_as_a_grammar(
    client: TestClient, generator: FakeGenerator
) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}

    response = client.post(PATH, json=BODY | {"output_config": {"format": form, "effort": "low"}})

    assert generator.submissions[-1]["params"].grammar is not None
    assert response.headers["x-legato-ignored"] == "output_config.effort"
    error = refusal(client, BODY | {"output_config": {"format": {"type": "json_schema"}}})
    assert error["message"].startswith("output_config.format must be")
