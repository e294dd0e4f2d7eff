"""Events and blocks of a message, in Anthropic's own types, and the same whole as streamed."""

import asyncio
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from legato.api.answers.anthropic import MessageAnswer
from legato.core.sampling_params import FinishReason
from legato.tokenization.tool_calls.reader import ToolCallDelta
from tests.api.answers.deltas import WrittenStream

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
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
        return [event async for event in MessageAnswer(model="fake").events(stream)]

    return asyncio.run(collect())


def whole_of(stream: WrittenStream) -> Any:
    return asyncio.run(MessageAnswer(model="fake").whole(stream))


def test_text_is_one_block_between_the_start_and_the_end_of_the_message() -> None:
    events = events_of(WrittenStream(["Par", "is"]))

    usage = {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3}
    message = events[0].pop("message")
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | {"output_tokens": 1},
    }
    assert events == [
        {"type": "message_start"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Par"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "is"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": usage | {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def test_calls_are_blocks_whose_input_comes_in_pieces() -> None:
    events = events_of(WrittenStream(CALLS, FinishReason.TOOL_CALLS))

    assert [event for event in events if event.get("index") == 1] == [
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "call_a", "name": "weather", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"city":'},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '"Paris"}'},
        },
        {"type": "content_block_stop", "index": 1},
    ]
    assert whole_of(WrittenStream(CALLS, FinishReason.TOOL_CALLS))["content"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "call_b", "name": "time", "input": {}},
    ]


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        (FinishReason.STOP, None, ("end_turn", None)),
        (FinishReason.STOP, 17, ("end_turn", None)),
        (FinishReason.STOP, "\n\n", ("stop_sequence", "\n\n")),
        (FinishReason.LENGTH, None, ("max_tokens", None)),
        (FinishReason.TOOL_CALLS, None, ("tool_use", None)),
        (FinishReason.ABORT, None, ("abort", None)),
    ],
)
def test_reason_of_the_end(reason: FinishReason, stop: Any, expected: tuple[str, str | None]) -> None:
    whole = whole_of(WrittenStream(["a"], reason, stop_reason=stop))
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected


@pytest.mark.parametrize("parts", [["Par", "is"], [""], CALLS, [*CALLS, "Done."]])
def test_events_fit_the_types_of_the_official_client_and_give_the_whole(parts: list[Any]) -> None:
    events = events_of(WrittenStream(parts))
    whole = whole_of(WrittenStream(parts))

    assert [EVENTS.validate_python(event).type for event in events] == [event["type"] for event in events]
    assert Message.model_validate(whole).usage.input_tokens == 4
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    texts = [block["text"] for block in whole["content"] if block["type"] == "text"]
    assert "".join(each.get("text", "") for each in deltas) == "".join(texts)
    assert events[-2]["usage"] == whole["usage"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["content_block"]["type"] for event in starts] == [
        block["type"] for block in whole["content"]
    ]


def test_arguments_that_were_cut_are_no_input() -> None:
    cut = whole_of(WrittenStream(CALLS[:4], FinishReason.LENGTH))
    assert cut["content"][1]["input"] == {}
    assert cut["stop_reason"] == "max_tokens"
