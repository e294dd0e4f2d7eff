"""Messages and content blocks of Anthropic's API as the messages of a chat."""

import json
from collections.abc import Mapping
from typing import Any

from legato.api.bodies.places import Messages, known_call, name_of, named, refuse, text_of

ROLES = ("user", "assistant", "system")
UNREAD_TYPES = (
    "thinking",
    "redacted_thinking",
)  # of another model: the body tells that they are not read


def chat_messages(messages: list[Any], system: str | list[Any] | None) -> Messages:
    """The conversation that `messages` and `system` hold.

    Raises RequestError naming the place at fault, e.g. messages.2.content.0.type.
    """
    head = _joined("system", system) if system else ""
    chat: Messages = [{"role": "system", "content": head}] if head else []
    for index, message in enumerate(messages):
        _add_message(chat, f"messages.{index}", named(f"messages.{index}", message, "message"))
    return chat


def _add_message(chat: Messages, place: str, message: Mapping[str, Any]) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        refuse(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    if not isinstance(content, str | list):
        refuse(f"{place}.content", "must be a text or a list of content blocks")
    if role == "assistant":
        chat.append(_assistant_message(f"{place}.content", content))
    elif role == "user" and isinstance(content, list):
        _add_user_blocks(chat, f"{place}.content", content)
    else:
        chat.append({"role": role, "content": _joined(f"{place}.content", content)})


def _assistant_message(place: str, content: str | list[Any]) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, calls = [], []
    for index, block in enumerate(content):
        where = f"{place}.{index}"
        match named(where, block, "block").get("type"):
            case "text":
                texts.append(text_of(where, block, "text"))
            case "tool_use":
                calls.append(_call(where, block))
            case kind if kind not in UNREAD_TYPES:
                _refuse_type(where, kind, "text and tool_use")
    return {"role": "assistant", "content": "".join(texts)} | ({"tool_calls": calls} if calls else {})


def _call(place: str, block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(
        named(f"{place}.input", block.get("input"), "set of arguments"), ensure_ascii=False
    )
    function = {"name": name_of(place, block, "name"), "arguments": arguments}
    return {"id": name_of(place, block, "id"), "type": "function", "function": function}


def _add_user_blocks(chat: Messages, place: str, content: list[Any]) -> None:
    """Results of tools are messages of their own; texts beside each other are one."""
    texts: list[str] = []
    for index, block in enumerate(content):
        where = f"{place}.{index}"
        match named(where, block, "block").get("type"):
            case "text":
                texts.append(text_of(where, block, "text"))
            case "tool_result":
                _flush(chat, texts)
                chat.append(_result_message(where, block, chat))
            case kind:
                _refuse_type(where, kind, "text and tool_result")
    _flush(chat, texts)
    if not content:
        refuse(place, "must hold at least one block")


def _flush(chat: Messages, texts: list[str]) -> None:
    if texts:
        chat.append({"role": "user", "content": "".join(texts)})
        texts.clear()


def _result_message(place: str, block: Mapping[str, Any], chat: Messages) -> dict[str, Any]:
    """A result without content is an empty one; one that is an error says so."""
    call_id = known_call(place, block, "tool_use_id", chat)
    text = _joined(f"{place}.content", block.get("content") or "")
    is_error = block.get("is_error")
    if not isinstance(is_error, bool | None):
        refuse(f"{place}.is_error", "must be true or false")
    return {"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if is_error else text}


def _joined(place: str, content: Any) -> str:
    """The text of blocks, joined with nothing between them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(place, "must be a text or a list of text blocks")
    texts = []
    for index, block in enumerate(content):
        where = f"{place}.{index}"
        if (kind := named(where, block, "block").get("type")) != "text":
            _refuse_type(where, kind, "text")
        texts.append(text_of(where, block, "text"))
    return "".join(texts)


def _refuse_type(place: str, kind: Any, supported: str) -> None:
    refuse(
        f"{place}.type",
        f"blocks of type {str(kind)[:64]!r} are not supported here, only {supported}",
        code="unsupported",
    )
