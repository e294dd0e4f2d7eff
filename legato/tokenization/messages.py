"""Conversations: what callers may give as messages, and what a chat template gets of them."""

from collections.abc import Mapping
from typing import Any, NoReturn

from legato.core.errors import RequestError

MESSAGES = 'a list of messages such as [{"role": "user", "content": "Hello"}]'
ROLES = ("system", "developer", "user", "assistant")
TOOL_ROLES = ("tool", "function")
UNSUPPORTED_FIELDS = ("audio", "function_call", "tool_calls")


def plain_messages(messages: Any) -> list[dict[str, str]]:
    """The messages as a template gets them: roles, texts and, where given, names.

    The texts of a message's parts stand joined, with nothing between them. An assistant's message without
    a content, as clients send it, has the empty text.
    Raises RequestError naming the place at fault, e.g. messages.0.content.
    """
    if not isinstance(messages, list | tuple):
        _refuse("messages", f"must be {MESSAGES}")
    plain = [_plain_message(f"messages.{index}", message) for index, message in enumerate(messages)]
    if all(message["role"] == "assistant" for message in plain):
        _refuse("messages", "must hold at least one message that is not the assistant's")
    return plain


def _plain_message(place: str, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        _refuse(place, "must be one message with a role and a content; messages hold one conversation")
    role = message.get("role")
    if role in TOOL_ROLES:
        _refuse(f"{place}.role", f"{role} needs tools, which are not supported", code="unsupported")
    if role not in ROLES:
        _refuse(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    for field in UNSUPPORTED_FIELDS:
        if message.get(field):
            _refuse(f"{place}.{field}", "is not supported; leave it out", code="unsupported")
    # "developer" is the newer name of "system", which is the one that templates know
    role = "system" if role == "developer" else role
    content, name = message.get("content"), message.get("name")
    if name is not None and not isinstance(name, str):
        _refuse(f"{place}.name", "must be a text")
    is_empty = content is None and role == "assistant"
    text = "" if is_empty else _content_text(f"{place}.content", content)
    return {"role": role, "content": text} | ({} if name is None else {"name": name})


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
