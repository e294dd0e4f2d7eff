"""The default model is made to call tools, and its answers hold what was asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.e2e.conftest import end_server, start_server

pytestmark = pytest.mark.model

NAME = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Will I need an umbrella in Paris this weekend?"}]


class Place(pydantic.BaseModel, extra="forbid"):
    city: str = pydantic.Field(max_length=20)
    country: Literal["France", "Korea"]


class GetForecast(pydantic.BaseModel, extra="forbid"):
    """The weather of the next days."""

    place: Place
    days: list[Literal["Saturday", "Sunday"]] = pydantic.Field(max_length=2)
    unit: Literal["celsius", "fahrenheit"]


class GetTime(pydantic.BaseModel, extra="forbid"):
    """The time."""


TYPES: dict[str, type[pydantic.BaseModel]] = {"get_forecast": GetForecast, "get_time": GetTime}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": kind.model_json_schema()}}
    for name, kind in TYPES.items()
]
FORECAST = {"type": "function", "function": {"name": "get_forecast"}}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    server = start_server(tmp_path_factory.mktemp("server"), Path(NAME))
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    end_server(server)


def ask(sdk: openai.OpenAI, **fields: Any) -> Any:
    shared = {"model": NAME, "messages": QUESTION, "tools": TOOLS, "temperature": 1, "max_tokens": 200}
    return sdk.chat.completions.create(**shared | fields).choices[0]


@pytest.mark.parametrize("seed", range(2))
def test_named_function_is_called_with_arguments_that_validate(sdk: openai.OpenAI, seed: int) -> None:
    choice = ask(sdk, tool_choice=FORECAST, seed=seed)

    [call] = choice.message.tool_calls
    assert call.function.name == "get_forecast"
    GetForecast.model_validate_json(call.function.arguments)
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


@pytest.mark.parametrize("seed", range(2))
def test_one_of_the_tools_is_called_when_one_must_be(sdk: openai.OpenAI, seed: int) -> None:
    choice = ask(sdk, tool_choice="required", parallel_tool_calls=False, seed=seed)

    [call] = choice.message.tool_calls
    TYPES[call.function.name].model_validate_json(call.function.arguments)
    assert choice.finish_reason == "tool_calls"


def test_streamed_call_is_the_plain_one(sdk: openai.OpenAI) -> None:
    fields = {"tool_choice": FORECAST, "seed": 3}
    [plain] = ask(sdk, **fields).message.tool_calls

    shared = {"model": NAME, "messages": QUESTION, "tools": TOOLS, "temperature": 1, "max_tokens": 200}
    chunks = list(sdk.chat.completions.create(**shared | fields, stream=True))  # type: ignore[call-overload]

    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert "".join(call.function.arguments for call in deltas) == plain.function.arguments
    assert len(deltas) > 5
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_cut_call_ends_by_its_length(sdk: openai.OpenAI) -> None:
    choice = ask(sdk, tool_choice=FORECAST, max_tokens=25, seed=0)

    [call] = choice.message.tool_calls
    assert choice.finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.function.arguments)


def test_schema_that_cannot_be_held_is_refused_by_the_field(sdk: openai.OpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": bad}}]
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(sdk, tools=tools, tool_choice="required")
    assert refusal.value.param == "tools"


def test_model_goes_on_from_a_result(sdk: openai.OpenAI) -> None:
    called = ask(sdk, tool_choice=FORECAST, seed=1).message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "rain on Sunday"}

    choice = ask(sdk, messages=[*QUESTION, called, result], temperature=0, max_tokens=40)

    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length", "tool_calls")
