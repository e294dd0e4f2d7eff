"""Events and items of a response, in OpenAI's own types, and the same whole as streamed."""

import asyncio
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from legato.api.answers.responses import ResponseAnswer
from legato.api.errors import ErrorAnswer
from legato.core.sampling_params import FinishReason
from legato.tokenization.tool_calls.reader import ToolCallDelta
from tests.api.answers.deltas import WrittenStream

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SETTINGS = {"model": "fake", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
CALLS = [
    "Let me ",
    "look.",
    ToolCallDelta(0, id="call_a", name="weather"),
    ToolCallDelta(0, '{"city":'),
    ToolCallDelta(0, '"Paris"}'),
    ToolCallDelta(1, id="call_b", name="time", arguments="{}"),
]


def events_of(stream: WrittenStream) -> list[Any]:
    async def collect() -> list[Any]:
        return [event async for event in ResponseAnswer(SETTINGS).events(stream)]

    return asyncio.run(collect())


def whole_of(stream: WrittenStream) -> Any:
    return asyncio.run(ResponseAnswer(SETTINGS).whole(stream))


def without_ids(value: Any) -> Any:
    """What two calls of the same request have in common."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        own = ("id", "item_id", "created_at", "completed_at")
        return {name: without_ids(each) for name, each in value.items() if name not in own}
    return value


def test_text_is_one_message_told_from_its_first_piece_to_the_whole() -> None:
    events = events_of(WrittenStream(["Par", "is"]))

    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert [event["delta"] for event in events[4:6]] == ["Par", "is"]
    [item] = events[-1]["response"]["output"]
    assert item["content"] == [{"type": "output_text", "text": "Paris", "annotations": [], "logprobs": []}]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }


def test_calls_are_items_of_their_own_after_the_text_before_them() -> None:
    events = events_of(WrittenStream(CALLS, FinishReason.TOOL_CALLS))

    by_call = [(e["output_index"], e["type"]) for e in events if e.get("output_index") in (1, 2)]
    assert by_call == [
        (1, "response.output_item.added"),
        (1, "response.function_call_arguments.delta"),
        (1, "response.function_call_arguments.delta"),
        (1, "response.function_call_arguments.done"),
        (1, "response.output_item.done"),
        (2, "response.output_item.added"),
        (2, "response.function_call_arguments.delta"),
        (2, "response.function_call_arguments.done"),
        (2, "response.output_item.done"),
    ]
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert [without_ids(item) for item in response["output"][1:]] == [
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "weather",
            "arguments": '{"city":"Paris"}',
        },
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "call_b",
            "name": "time",
            "arguments": "{}",
        },
    ]


@pytest.mark.parametrize("parts", [["Par", "is"], [""], CALLS, [*CALLS, "Done."]])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_each_event_fits_the_type_that_the_official_client_has_for_it(
    parts: list[Any], reason: FinishReason
) -> None:
    for event in events_of(WrittenStream(parts, reason)):
        parsed = EVENTS.validate_python(event)
        assert parsed.type == event["type"]


@pytest.mark.parametrize("parts", [["Par", "is"], [""], CALLS, [*CALLS, "Done."]])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_the_last_event_holds_what_a_plain_call_answers(parts: list[Any], reason: FinishReason) -> None:
    streamed = events_of(WrittenStream(parts, reason))[-1]["response"]
    whole = whole_of(WrittenStream(parts, reason))

    assert without_ids(streamed) == without_ids(whole)
    assert Response.model_validate(whole).output_text == "".join(p for p in parts if isinstance(p, str))


def test_an_answer_that_was_cut_says_so_and_its_last_item_too() -> None:
    cut = whole_of(WrittenStream([*CALLS[:-1]], FinishReason.LENGTH))

    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in cut["output"]] == ["completed", "incomplete"]
    assert cut["completed_at"] is None
    aborted = whole_of(WrittenStream(["Par"], FinishReason.ABORT))
    assert (aborted["status"], aborted["incomplete_details"]) == ("incomplete", {"reason": "abort"})


def test_a_failure_is_the_last_event_and_keeps_what_had_come() -> None:
    answer = ResponseAnswer(SETTINGS)

    async def run() -> list[Any]:
        events = answer.events(WrittenStream(["Par", "is"]))
        return [await anext(events) for _ in range(5)]

    before = asyncio.run(run())
    failed: Any = answer.format.fault(ErrorAnswer(status=503, message="the engine ended"))

    assert failed["type"] == "response.failed"
    assert failed["sequence_number"] == 5
    assert failed["response"]["id"] == before[0]["response"]["id"]
    assert failed["response"]["error"] == {"code": "server_error", "message": "the engine ended"}
    [item] = failed["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Par")
    assert EVENTS.validate_python(failed).type == "response.failed"
