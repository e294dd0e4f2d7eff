"""/v1/responses: what it takes, what it refuses and by which name, and the official client on top."""

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.core.errors import EngineDiedError
from tests.api.asgi_call import AsgiCall
from tests.api.openai_calls import refused
from tests.api.sse_events import named_events_of
from tests.fakes import FakeGenerator

PATH = "/v1/responses"


@pytest.fixture
def sdk(client: TestClient) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=client)


def prompt_of(generator: FakeGenerator) -> str:
    return bytes(generator.submissions[-1]["prompts"][0]).decode()


def test_answer_repeats_what_holds_and_says_what_came(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = "Paris"

    answer = client.post(
        PATH,
        json={
            "model": "fake",
            "input": "hi",
            "instructions": "Be brief.",
            "temperature": 0.5,
            "metadata": {"a": "b"},
            "user": "u",
        },
    ).json()

    assert prompt_of(generator) == "<system>Be brief.<user>hi<assistant>"
    assert answer.pop("id").startswith("resp_")
    assert answer["output"][0].pop("id").startswith("msg_")
    assert isinstance(answer.pop("created_at"), int)
    assert isinstance(answer.pop("completed_at"), int)
    assert answer == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "model": "fake",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Paris", "annotations": [], "logprobs": []}],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 36,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 41,
        },
        "user": "u",
    }


def test_items_are_a_conversation_whoever_wrote_them(client: TestClient, generator: FakeGenerator) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
        },
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}],
        },
    ]

    assert client.post(PATH, json={"input": items}).status_code == 200

    assert prompt_of(generator) == "<system>Be brief.<user>a<assistant>b<user>cd<assistant>"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "input"),
        (None, "input"),
        (7, "input"),
        ([{"role": "assistant", "content": "x"}], "input"),
        (["hi"], "input.0"),
        ([{"content": "x"}], "input.0.role"),
        ([{"role": "user", "content": 7}], "input.0.content"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:9"}]}],
         "input.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input.0.content.0.text"),
        ([{"type": "item_reference", "id": "x"}], "input.0.type"),
        ([{"type": "web_search_call"}], "input.0.type"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input.0.call_id"),
        (
            [
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": 1},
            ],
            "input.1.output",
        ),
        ([{"role": "user", "content": "x"}] * 257, "input"),
        ("x" * 2000, "input"),
    ],
)  # fmt: skip
def test_faults_of_the_input_are_named(client: TestClient, value: Any, param: str) -> None:
    assert refused(client, PATH, {"input": value})["param"] == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("background", True),
        ("prompt", {"id": "pmpt_1"}),
        ("truncation", "auto"),
        ("include", ["message.output_text.colours"]),
        ("max_output_tokens", 0),
        ("top_logprobs", 21),
        ("temperature", 3),
        ("metadata", {"a": 1}),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(client: TestClient, field: str, value: Any) -> None:
    assert refused(client, PATH, {"input": "hi", field: value})["param"].split(".")[0] == field


def test_values_that_ask_for_nothing_pass(client: TestClient) -> None:
    body = {
        "background": False,
        "conversation": None,
        "include": ["reasoning.encrypted_content"],
        "previous_response_id": None,
        "store": False,
        "stream_options": {"include_usage": True},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
    }

    response = client.post(PATH, json={"input": "hi", **body})

    assert response.status_code == 200
    assert not {"x-legato-ignored", "x-legato-adjusted"} & set(response.headers)


def test_what_is_not_read_is_named(client: TestClient) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi", "detail": "low"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ]
    body = {"input": items, "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "store": True}

    response = client.post(PATH, json=body | {"max_tokens": 5, "max_output_tokens": 6})

    ignored = "input.content.detail,input.summary,reasoning,text.verbosity"
    assert response.headers["x-legato-ignored"] == ignored
    assert response.headers["x-legato-adjusted"] == "max_tokens,store"
    assert response.json()["store"] is False


def test_created_goes_out_before_the_first_token_and_text_not(app: FastAPI, generator: FakeGenerator) -> None:
    generator.pause_after = 0

    async def run() -> None:
        call = AsgiCall(app, PATH, {"input": "ab", "stream": True})
        assert (await call.message())["status"] == 200
        assert "event: response.created\n" in await call.text()
        assert "event: response.in_progress\n" in await call.text()
        assert call.num_unread == 0
        generator.resumed.set()
        assert "event: response.output_item.added\n" in await call.text()
        await call.task

    asyncio.run(run())


@pytest.mark.parametrize("tokens_per_delta", [1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_output_tokens": 9}, {"max_output_tokens": 1}, {"stop": "한국"}, {"stop": ["국어 𠮷 "]}],
)
def test_stream_ends_with_the_response_that_a_plain_call_gives(
    client: TestClient, generator: FakeGenerator, options: dict[str, Any], tokens_per_delta: int
) -> None:
    generator.output = "🧑‍🚀 é 한국어 𠮷"
    generator.tokens_per_delta = tokens_per_delta
    body = {"input": "hi", **options}

    events = named_events_of(client.post(PATH, json=body | {"stream": True}).text)
    plain = client.post(PATH, json=body).json()

    last = events[-1]["response"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == plain["output"][0]["content"][0]["text"] == last["output"][0]["content"][0]["text"]
    for field in ("status", "incomplete_details", "usage", "metadata", "temperature"):
        assert last[field] == plain[field]
    assert events[-1]["type"] == f"response.{plain['status']}"


def test_failure_midway_is_response_failed_and_the_end(client: TestClient, generator: FakeGenerator) -> None:
    generator.failure, generator.fail_after = EngineDiedError("the engine ended"), 2

    events = named_events_of(client.post(PATH, json={"input": "abcdef", "stream": True}).text)

    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "the engine ended"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert client.post(PATH, json={"input": "abcdef"}).json()["error"]["code"] == "engine_died"


def test_official_client_reads_answers_streams_and_its_own_history(
    sdk: openai.OpenAI, generator: FakeGenerator
) -> None:
    first = sdk.responses.create(model="fake", input="hi")
    assert first.output_text == "<user>hi<assistant>"
    history: list[Any] = [
        {"role": "user", "content": "hi"},
        *first.output,
        {"role": "user", "content": "more"},
    ]
    generator.output = "Paris"

    with sdk.responses.stream(model="fake", input=history) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()

    assert prompt_of(generator) == "<user>hi<assistant><user>hi<assistant><user>more<assistant>"
    assert "".join(deltas) == final.output_text == "Paris"
    assert final.usage is not None
    assert final.usage.output_tokens == 5
    raw = list(sdk.responses.create(model="fake", input="hi", max_output_tokens=2, stream=True))
    assert raw[-1].type == "response.incomplete"
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        sdk.responses.create(model="fake", input="hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve("resp_1")


def test_official_client_works_asynchronously(app: FastAPI, generator: FakeGenerator) -> None:
    generator.output = "Paris"

    async def run() -> tuple[str, str]:
        transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        async with openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key="none", http_client=transport
        ) as sdk:
            plain = await sdk.responses.create(model="fake", input="hi")
            async with sdk.responses.stream(model="fake", input="hi") as stream:
                final = await stream.get_final_response()
            return plain.output_text, final.output_text

    assert asyncio.run(run()) == ("Paris", "Paris")


def test_logprobs_stand_beside_the_text_streamed_and_plain(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "héy"  # é is two tokens: the first waits for the second
    body = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}

    plain = client.post(PATH, json=body).json()["output"][0]["content"][0]["logprobs"]
    events = named_events_of(client.post(PATH, json=body | {"stream": True}).text)

    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [len(logprobs) for logprobs in deltas] == [1, 2, 1]
    assert [entry for logprobs in deltas for entry in logprobs] == plain
    assert b"".join(bytes(entry["bytes"]) for entry in plain).decode() == "héy"
    assert [len(entry["top_logprobs"]) for entry in plain] == [2, 2, 2, 2]
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == plain
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == plain
    assert events[-1]["response"]["top_logprobs"] == 2


WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.mark.parametrize("tokens_per_delta", [1, 5, 99])
def test_calls_are_items_that_a_client_can_send_back(
    sdk: openai.OpenAI, generator: FakeGenerator, tokens_per_delta: int
) -> None:
    generator.output, generator.tokens_per_delta = f"Let me look. {CALL}", tokens_per_delta
    tools: Any = [WEATHER]

    plain = sdk.responses.create(model="fake", input="hi", tools=tools)
    with sdk.responses.stream(model="fake", input="hi", tools=tools) as stream:
        streamed = stream.get_final_response()

    for response in (plain, streamed):
        message, call = response.output
        assert response.status == "completed"
        assert message.type == "message"
        assert response.output_text == "Let me look."
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("weather", '{"city": "Paris"}')
    assert plain.tools[0].to_dict()["name"] == "weather"
    result = {"type": "function_call_output", "call_id": plain.output[1].call_id, "output": "rain"}  # type: ignore[union-attr]
    history: Any = [{"role": "user", "content": "hi"}, *plain.output, result]
    sdk.responses.create(model="fake", input=history, tools=tools)
    assert prompt_of(generator) == "<weather><user>hi<assistant>Let me look.<tool>rain<assistant>"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [WEATHER | {"parameters": {"type": "array"}}]}, "tools.0.parameters"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "often"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "time"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"input": [{"type": "function_call_output", "call_id": "call_x", "output": "rain"}]},
            "input.0.call_id",
        ),
    ],
)
def test_faults_of_tools_are_named(client: TestClient, fields: dict[str, Any], param: str) -> None:
    assert refused(client, PATH, {"input": "hi", **fields})["param"].startswith(param)


def test_allowed_tools_are_those_that_may_be_called(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = CALL
    time_ = {"type": "function", "name": "time"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [time_]}

    answer = client.post(PATH, json={"input": "hi", "tools": [WEATHER, time_], "tool_choice": choice}).json()

    assert [item["type"] for item in answer["output"]] == ["message"]  # it reads like a call, but is text
    assert answer["tool_choice"] == choice


def test_form_of_the_text_reaches_the_engine_as_a_grammar(
    client: TestClient, generator: FakeGenerator
) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}

    answer = client.post(PATH, json={"input": "hi", "text": {"format": form}}).json()
    chat = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    messages = [{"role": "user", "content": "hi"}]
    client.post("/v1/chat/completions", json={"messages": messages, "response_format": chat})

    grammar, same = [submission["params"].grammar for submission in generator.submissions]
    assert grammar == same
    assert grammar is not None
    assert answer["text"] == {"format": form}
    for bad in ({"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "schema": 7}, "json"):
        error = refused(client, PATH, {"input": "hi", "text": {"format": bad}})
        assert error["param"].startswith("text.format")
