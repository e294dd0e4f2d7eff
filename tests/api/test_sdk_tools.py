"""The official SDK calls tools: plain, streamed, through its stream helper, and parsed."""

import asyncio

import httpx2
import openai
import pydantic
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.tokenization.tool_calls.hermes import HERMES
from tests.fakes import FakeGenerator

QUESTION = [{"role": "user", "content": "How is the weather?"}]
PARIS, SEOUL = '{"city": "Paris"}', '{"city": "서울"}'


class GetWeather(pydantic.BaseModel):
    """The weather in a city."""

    city: str


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")
ASK = {"model": "fake", "messages": QUESTION, "tools": [TOOL]}


@pytest.fixture
def sdk(client: TestClient, generator: FakeGenerator) -> openai.OpenAI:
    generator.output = "I look.\n" + HERMES.calls_text([("get_weather", PARIS), ("get_weather", SEOUL)])
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=client)


def test_plain_answer_has_the_calls(sdk: openai.OpenAI) -> None:
    choice = sdk.chat.completions.create(**ASK).choices[0]

    assert choice.message.tool_calls is not None
    assert [call.function.arguments for call in choice.message.tool_calls] == [PARIS, SEOUL]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")


def test_stream_helper_joins_the_calls(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(**ASK) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        completion = stream.get_final_completion()

    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "get_weather", PARIS),
        (1, "get_weather", SEOUL),
    ]
    [choice] = completion.choices
    assert choice.message.tool_calls is not None
    assert [call.function.parsed_arguments for call in choice.message.tool_calls] == [
        GetWeather(city="Paris"),
        GetWeather(city="서울"),
    ]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")


def test_arguments_are_parsed_into_the_clients_own_type(sdk: openai.OpenAI) -> None:
    [choice] = sdk.chat.completions.parse(**ASK).choices
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.parsed_arguments == GetWeather(city="Paris")


def test_result_goes_back_as_the_sdk_writes_it(sdk: openai.OpenAI, generator: FakeGenerator) -> None:
    called = sdk.chat.completions.create(**ASK).choices[0].message
    assert called.tool_calls is not None
    generator.output = "Sunny."
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in called.tool_calls]

    answer = sdk.chat.completions.create(**ASK | {"messages": [*QUESTION, called, *results]})

    assert answer.choices[0].message.content == "Sunny."
    prompt = bytes(generator.submissions[-1]["prompts"][0]).decode()
    assert prompt.endswith("<assistant>I look.<tool>sun<tool>sun<assistant>")


def test_async_client_streams_the_same(app: FastAPI, sdk: openai.OpenAI) -> None:
    async def arguments() -> list[str]:
        transport = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
        http_client = httpx2.AsyncClient(transport=transport)
        client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http_client)
        joined = ["", ""]
        async with client:
            async for chunk in await client.chat.completions.create(**ASK, stream=True):
                for call in chunk.choices[0].delta.tool_calls or []:
                    assert call.function is not None
                    joined[call.index] += call.function.arguments or ""
        return joined

    assert asyncio.run(arguments()) == [PARIS, SEOUL]
