"""Input items of the Responses API as the messages of a chat."""

from collections.abc import Mapping
from typing import Any

from legato.api.bodies.places import Messages, known_call, name_of, named, refuse, text_of

ROLES = ("system", "developer", "user", "assistant")
TEXT_TYPES = ("input_text", "output_text", "text", "refusal")
ITEM_TYPES = "message, function_call and function_call_output"


def messages_of_items(items: str | list[Any], instructions: str | None) -> Messages:
    """The conversation that `input` and `instructions` hold.

    Raises RequestError naming the place at fault, e.g. input.2.content.0.type.
    """
    messages: Messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for index, item in enumerate(items):
        _add_item(messages, f"input.{index}", item)
    return messages


def _add_item(messages: Messages, place: str, item: Any) -> None:
    match named(place, item, "item").get("type") or "message":
        case "message":
            messages.append(_message(place, item))
        case "function_call":
            _add_call(messages, place, item)
        case "function_call_output":
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": known_call(place, item, "call_id", messages),
                    "content": _content(f"{place}.output", item.get("output")),
                }
            )
        case "reasoning":  # of another model: the body tells that it is not read
            pass
        case other:
            refuse(
                f"{place}.type",
                f"{str(other)[:64]!r} is not supported, only {ITEM_TYPES}",
                code="unsupported",
            )


def _message(place: str, item: Mapping[str, Any]) -> dict[str, Any]:
    role = item.get("role")
    if role not in ROLES:
        refuse(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    return {"role": role, "content": _content(f"{place}.content", item.get("content"))}


def _add_call(messages: Messages, place: str, item: Mapping[str, Any]) -> None:
    """A call belongs to the turn of the assistant that it follows."""
    function = {"name": name_of(place, item, "name"), "arguments": text_of(place, item, "arguments")}
    call = {"id": name_of(place, item, "call_id"), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(place: str, content: Any) -> str:
    """The text of a content; parts stand joined, with nothing between them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(place, "must be a text or a list of text parts")
    return "".join(_part_text(f"{place}.{index}", part) for index, part in enumerate(content))


def _part_text(place: str, part: Any) -> str:
    type_ = named(place, part, "part").get("type")
    if type_ not in TEXT_TYPES:
        reason = f"parts of type {str(type_)[:64]!r} are not supported, only input_text and output_text"
        refuse(f"{place}.type", reason, code="unsupported")
    return text_of(place, part, "refusal" if type_ == "refusal" else "text")
