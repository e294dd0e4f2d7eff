"""Reads a stream as clients do: events parted by blank lines, comments skipped."""

import json
from typing import Any


def events_of(text: str) -> list[Any]:
    """The JSON of each `data:` line; "[DONE]" as it is."""
    assert text.endswith("\n\n")
    lines = [line for line in text.split("\n\n")[:-1] if not line.startswith(":")]
    data = [line.removeprefix("data: ") for line in lines]
    return [datum if datum == "[DONE]" else json.loads(datum) for datum in data]


def named_events_of(text: str) -> list[Any]:
    """The JSON of each event, whose name must be its `type`."""
    assert text.endswith("\n\n")
    events = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events
