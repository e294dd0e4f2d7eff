"""Reading a conversation that is not in chat's own shape: faults are named by their place in the body."""

from collections.abc import Mapping
from typing import Any, NoReturn

from legato.core.errors import RequestError

Messages = list[dict[str, Any]]  # as chat has them


def named(place: str, value: Any, kind: str) -> Mapping[str, Any]:
    """`value`, which must be an object. Raises RequestError."""
    if not isinstance(value, Mapping):
        refuse(place, f"must be one {kind}, an object with named fields")
    return value


def text_of(place: str, value: Mapping[str, Any], name: str) -> str:
    """The text that the field `name` of `value` must hold. Raises RequestError."""
    text = value.get(name)
    if not isinstance(text, str):
        refuse(f"{place}.{name}", "must be a text")
    return text


def name_of(place: str, value: Mapping[str, Any], name: str) -> str:
    """Like text_of, of a text that names something, so it cannot be empty."""
    text = text_of(place, value, name)
    if not text:
        refuse(f"{place}.{name}", "must be a text that is not empty")
    return text


def known_call(place: str, value: Mapping[str, Any], name: str, messages: Messages) -> str:
    """The id in the field `name`, which must be that of a call in `messages`. Raises RequestError."""
    call_id = name_of(place, value, name)
    calls = (call["id"] for message in messages for call in message.get("tool_calls", ()))
    if call_id not in calls:
        refuse(f"{place}.{name}", f"{call_id[:64]!r} is the id of no call that stands before it")
    return call_id


def refuse(place: str, reason: str, *, code: str = "invalid_value") -> NoReturn:
    raise RequestError(f"{place}: {reason}", param=place, code=code)
