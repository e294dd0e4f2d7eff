"""Conversations: what callers may give as messages, and what a chat template gets of them."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from legato.core.errors import RequestError

MESSAGES = 'a list of messages such as [{"role": "user", "content": "Hello"}]'
ROLES = ("system", "developer", "user", "assistant", "tool")
REMEDIES = {
    "audio": "is not supported; leave it out",
    "function_call": "is the older form of tool_calls; give those",
}


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as a template gets them.

    Each has a role and a content, a text: its parts stand joined, with nothing between them, and an
    assistant's message without one, as clients send it, has the empty text. Beside these are a name, where
    one was given; an assistant's tool_calls, {"id", "type", "function": {"name", "arguments"}}; and a
    result's tool_call_id, with the name of the function that gave it.
    Raises RequestError naming the place at fault, e.g. messages.0.content.
    """
    if not isinstance(messages, list | tuple):
        _refuse("messages", f"must be {MESSAGES}")
    called: dict[str, str] = {}  # id of a call that stands before -> name of its function
    plain = [_plain_message(f"messages.{index}", message, called) for index, message in enumerate(messages)]
    if all(message["role"] == "assistant" for message in plain):
        _refuse("messages", "must hold at least one message that is not the assistant's")
    return plain


def _plain_message(place: str, message: Any, called: dict[str, str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(place, "must be one message with a role and a content; messages hold one conversation")
    role = _role(place, message)
    for name, remedy in REMEDIES.items():
        if message.get(name):
            _refuse(f"{place}.{name}", remedy, code="unsupported")
    content, calls = message.get("content"), message.get("tool_calls")
    says_nothing = role == "assistant" and (content is None or bool(calls and content == []))
    text = "" if says_nothing else _content_text(f"{place}.content", content)
    plain: dict[str, Any] = {"role": role, "content": text}
    if message.get("name") is not None:
        plain["name"] = _text(f"{place}.name", message["name"])
    if calls:
        if role != "assistant":
            _refuse(f"{place}.tool_calls", "must stand in a message of the assistant")
        plain["tool_calls"] = _plain_calls(f"{place}.tool_calls", calls)
        called |= {call["id"]: call["function"]["name"] for call in plain["tool_calls"]}
    if role == "tool":
        plain |= _answered(f"{place}.tool_call_id", message.get("tool_call_id"), called)
    return plain


def _role(place: str, message: Mapping[Any, Any]) -> str:
    role = message.get("role")
    if role == "function":
        _refuse(f"{place}.role", "function is the older form of tool; give that, with a tool_call_id")
    if role not in ROLES:
        _refuse(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    # "developer" is the newer name of "system", which is the one that templates know
    return "system" if role == "developer" else str(role)


def _plain_calls(place: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        _refuse(place, "must be a list of calls")
    return [_plain_call(f"{place}.{index}", call) for index, call in enumerate(calls)]


def _plain_call(place: str, call: Any) -> dict[str, Any]:
    shape = '{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}'
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        _refuse(place, f"must be a call such as {shape}")
    if call.get("type", "function") != "function":
        _refuse(f"{place}.type", "must be function", code="unsupported")
    function = {
        "name": _text(f"{place}.function.name", call["function"].get("name")),
        "arguments": _arguments(f"{place}.function.arguments", call["function"].get("arguments")),
    }
    return {"id": _text(f"{place}.id", call.get("id")), "type": "function", "function": function}


def _arguments(place: str, arguments: Any) -> str:
    """Their text; some clients give the object itself, or nothing for no arguments."""
    if isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        _refuse(place, "must be the text of a JSON object")
    return arguments.strip() or "{}"


def _answered(place: str, call_id: Any, called: Mapping[str, str]) -> dict[str, str]:
    """The fields of a result that say of which call it is."""
    if _text(place, call_id) not in called:
        _refuse(place, f"{call_id[:64]!r} is the id of no call in an assistant's message before this one")
    return {"tool_call_id": call_id, "name": called[call_id]}


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        _refuse(place, "must be a text that is not empty")
    return value


def _content_text(place: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not content or not isinstance(content, list | tuple):
        _refuse(place, "must be a text or a list of text parts")
    return "".join(_part_text(f"{place}.{index}", part) for index, part in enumerate(content))


def _part_text(place: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        _refuse(place, 'must be a part such as {"type": "text", "text": "Hello"}')
    if part.get("type") != "text":
        reason = f"parts of type {str(part.get('type'))[:64]!r} are not supported, only text"
        _refuse(f"{place}.type", reason, code="unsupported")
    if not isinstance(part.get("text"), str):
        _refuse(f"{place}.text", "must be a text")
    text: str = part["text"]
    return text


def _refuse(place: str, reason: str, *, code: str = "invalid_value") -> NoReturn:
    raise RequestError(f"{place}: {reason}", param=place, code=code)
