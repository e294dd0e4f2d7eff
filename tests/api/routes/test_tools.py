"""Tools on the chat route: what goes into the prompt, and how calls come out, whole and streamed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.core.errors import RequestError
from legato.tokenization.tool_calls.hermes import HERMES
from tests.api.openai_calls import USER, refused
from tests.api.sse_events import events_of
from tests.fakes import FakeGenerator

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
TIME = {"type": "function", "function": {"name": "get_time"}}
BODY = {"messages": [USER], "tools": [WEATHER, TIME], "max_tokens": 500}
PARIS, SEOUL = '{"city": "Paris"}', '{"city": "서울"}'
CALLS = HERMES.calls_text([("get_weather", PARIS), ("get_weather", SEOUL)])


def answer(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(PATH, json=BODY | fields)
    assert response.status_code == 200, response.text
    assert "x-legato-ignored" not in response.headers
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    events = events_of(client.post(PATH, json=BODY | fields | {"stream": True}).text)
    assert events.pop() == "[DONE]"
    return [choice for event in events for choice in event["choices"]]


def test_calls_stand_beside_what_is_said(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = CALLS

    choice = answer(client)

    calls = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert [call["type"] for call in calls] == ["function", "function"]
    assert [call["function"] for call in calls] == [
        {"name": "get_weather", "arguments": PARIS},
        {"name": "get_weather", "arguments": SEOUL},
    ]
    assert len({call["id"] for call in calls}) == 2
    generator.output = f"I look.\n{CALLS}"
    assert answer(client)["message"]["content"] == "I look."


def test_stream_tells_id_and_name_once_and_then_the_arguments(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = CALLS

    choices = streamed(client)

    assert choices[0]["delta"]["role"] == "assistant"
    assert choices[0]["delta"]["content"] is None
    assert all("content" not in choice["delta"] for choice in choices[1:])
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    begun = [call for call in deltas if "id" in call]
    assert [(call["index"], call["type"], call["function"]["name"]) for call in begun] == [
        (0, "function", "get_weather"),
        (1, "function", "get_weather"),
    ]
    assert len({call["id"] for call in begun}) == 2
    arguments = ["", ""]
    for call in deltas:
        arguments[call["index"]] += call["function"]["arguments"]
        assert set(call) <= {"index", "id", "type", "function"}
    assert arguments == [PARIS, SEOUL]
    assert len(deltas) > 10
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize(
    ("output", "max_tokens", "reason", "num_calls"),
    [
        ("Hello", 500, "stop", 0),
        ("Hello", 3, "length", 0),
        (CALLS, 500, "tool_calls", 2),
        (CALLS, len(CALLS.encode()) - 30, "length", 2),
        (CALLS, 65, "length", 1),
        (CALLS, 4, "length", 0),
        ('<tool_call>{"name": "get_time", "arguments": {"a": oops', 500, "stop", 1),
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', 500, "stop", 0),
    ],
)
def test_reason_is_tool_calls_only_for_calls_that_are_complete(
    client: TestClient, generator: FakeGenerator, output: str, max_tokens: int, reason: str, num_calls: int
) -> None:
    generator.output = output

    choice = answer(client, max_tokens=max_tokens)

    assert choice["finish_reason"] == reason
    assert len(choice["message"].get("tool_calls", [])) == num_calls
    assert streamed(client, max_tokens=max_tokens)[-1]["finish_reason"] == reason


@pytest.mark.parametrize("max_tokens", [4, 20, len(HERMES.calls_text([("get_weather", PARIS)])) + 15])
def test_forced_answer_that_is_cut_shows_no_markup(
    client: TestClient, generator: FakeGenerator, max_tokens: int
) -> None:
    generator.output = CALLS

    choice = answer(client, max_tokens=max_tokens, tool_choice="required")

    assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "length")
    deltas = [each["delta"] for each in streamed(client, max_tokens=max_tokens, tool_choice="required")]
    assert not any(delta.get("content") for delta in deltas)
    assert answer(client, max_tokens=20)["message"]["content"], "what is free to be text is shown"


def test_model_is_told_of_the_tools_unless_it_may_not_call(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = CALLS

    said = answer(client, tool_choice="none")
    answer(client)

    assert said["message"] == {"role": "assistant", "content": CALLS, "refusal": None}
    assert said["finish_reason"] == "stop"
    prompts = [bytes(submission["prompts"][0]).decode() for submission in generator.submissions]
    assert prompts == ["<user>hi<assistant>", "<get_weather><get_time><user>hi<assistant>"]


def test_allowed_tools_are_those_that_can_be_called_and_all_are_told(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = CALLS
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}

    choice = answer(client, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})

    assert choice["message"]["content"] == CALLS
    assert b"<get_weather><get_time>" in bytes(generator.submissions[0]["prompts"][0])


def test_result_goes_back_with_the_call_that_it_answers(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = CALLS
    called = answer(client)["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in called["tool_calls"]
    ]
    generator.output = "It is sunny."

    choice = answer(client, messages=[USER, called, *results])

    assert choice["message"]["content"] == "It is sunny."
    prompt = bytes(generator.submissions[-1]["prompts"][0])
    assert prompt.endswith(b"<assistant><tool>sunny<tool>sunny<assistant>")


@pytest.mark.parametrize(
    ("fields", "is_constrained"),
    [
        ({}, False),
        ({"tool_choice": "none", "parallel_tool_calls": False}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, True),
        ({"parallel_tool_calls": False}, True),
        ({"tools": [{"type": "function", "function": {**TIME["function"], "strict": True}}]}, True),
    ],
)
def test_what_must_be_kept_is_a_grammar_and_what_need_not_is_none(
    client: TestClient, generator: FakeGenerator, fields: dict[str, Any], is_constrained: bool
) -> None:
    answer(client, **fields)
    assert (generator.submissions[0]["params"].grammar is not None) == is_constrained


def test_answer_calls_tools_or_keeps_to_the_response_format(
    client: TestClient, generator: FakeGenerator
) -> None:
    formatted = {"response_format": {"type": "json_object"}}
    for fields in ({"tool_choice": "none"}, {}, {"tool_choice": "required"}):
        answer(client, **formatted, **fields)

    said, either, called = (submission["params"].grammar for submission in generator.submissions)
    assert json.loads(said)["grammars"][0]["json_schema"]["type"] == "object"
    assert [each.get("name") for each in json.loads(either)["grammars"]] == [None, "said"]
    assert called.startswith("start: calls\n")


def test_grammar_that_cannot_be_built_is_a_fault_of_the_tools(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.refusal = RequestError("unbalanced (", param="grammar", code="invalid_grammar")
    assert refused(client, PATH, BODY | {"tool_choice": "required"})["param"] == "tools"


def test_markers_of_calls_are_shown_where_tools_are(client: TestClient, generator: FakeGenerator) -> None:
    generator.tool_format = replace(HERMES, token_ids={"<tool_call>": 7})

    answer(client)
    answer(client, tool_choice="none")

    assert [submission.get("shown_ids") for submission in generator.submissions] == [(7,), None]


def test_tokens_are_counted_with_the_tools(client: TestClient) -> None:
    response = client.post("/tokenize", json={"messages": [USER], "tools": [TIME]})
    assert bytes(response.json()["tokens"]) == b"<get_time><user>hi<assistant>"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools.0.type"),
        ({"tools": [{**TIME, "type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools.0.function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools.0.function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": ["x" * 70_000]}}}]},
            "tools.0.function.parameters",
        ),
        ({"tools": [TIME, TIME]}, "tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice",
        ),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "unknown"}}}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(
    client: TestClient, fields: dict[str, Any], param: str
) -> None:
    error = refused(client, PATH, BODY | fields)
    assert (error["param"] or "").startswith(param)


def test_older_fields_name_the_newer_ones(client: TestClient) -> None:
    assert "tools" in refused(client, PATH, BODY | {"functions": [{"name": "f"}]})["message"]
    assert "tool_choice" in refused(client, PATH, BODY | {"function_call": {"name": "f"}})["message"]


def test_what_nobody_reads_in_a_tool_is_told(client: TestClient) -> None:
    tool = {**TIME, "cache_control": {}, "function": {"name": "get_time", "returns": {}}}
    response = client.post(PATH, json=BODY | {"tools": [tool]})
    assert response.headers["x-legato-ignored"] == "tools.cache_control,tools.function.returns"


def test_completions_have_no_tools(client: TestClient) -> None:
    assert refused(client, "/v1/completions", {"prompt": "a", "tools": [TIME]})["param"] == "tools"


def test_streamed_calls_are_those_of_a_plain_answer(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = f" Um — \n{CALLS} dann {CALLS}"
    for tokens_per_delta in (1, 2, 7, 500):
        generator.tokens_per_delta = tokens_per_delta
        whole = answer(client)["message"]
        choices = streamed(client)
        deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        arguments = [""] * 4
        for call in deltas:
            arguments[call["index"]] += call["function"]["arguments"]
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == whole["content"]
        assert arguments == [call["function"]["arguments"] for call in whole["tool_calls"]]
        assert [json.loads(each) for each in arguments] == [json.loads(PARIS), json.loads(SEOUL)] * 2
