"""Conversations: from a body's messages to what a chat template gets."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from legato.api.bodies.generation import Body, one_of, unsupported
from legato.api.limits import check_limit
from legato.core.errors import RequestError
from legato.frontend.generator import ChatMessage

# Arguments of a template that have a field of their own, or no way in.
TAKEN_ARGUMENTS = frozenset({"add_generation_prompt", "messages", "self", "tools"})


class TextPart(BaseModel):
    """A part of a message; legato reads texts alone and fetches nothing."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        str | list[TextPart] | None, one_of("a text or a list of parts, each with a type and its text")
    ] = None


class TemplateFields(Body):
    """How the model's chat template is applied."""

    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def template_options(self) -> dict[str, Any]:
        """The keyword arguments of Generator.chat_prompt. Raises RequestError for names that it owns."""
        param = "chat_template_kwargs"
        arguments = self.chat_template_kwargs or {}
        check_limit("template_kwargs", len(arguments), param=param)
        for name in arguments:
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) or name in TAKEN_ARGUMENTS:
                raise RequestError(f"{param}: {name[:64]!r} cannot be set", param=param)
        return {"add_generation_prompt": self.add_generation_prompt is not False, **arguments}


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """The messages as a template gets them: roles and texts alone.

    The texts of a message's parts stand joined, with nothing between them.
    Raises RequestError naming the message at fault.
    """
    check_limit("messages", len(messages), param="messages")
    if all(message.role == "assistant" for message in messages):
        raise RequestError(
            "messages must hold at least one message that is not the assistant's", param="messages"
        )
    return [_chat_message(f"messages.{index}", message) for index, message in enumerate(messages)]


def _chat_message(param: str, message: Message) -> ChatMessage:
    if message.role in ("tool", "function"):
        raise RequestError(
            f"{param}.role: {message.role} needs tools, which are not supported",
            param=f"{param}.role",
            code="unsupported",
        )
    for name in ("audio", "function_call", "tool_calls"):
        if (message.model_extra or {}).get(name):
            raise unsupported(f"{param}.{name}")
    # "developer" is the newer name of "system", which is the one that templates know
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": _content_text(f"{param}.content", message.content)}


def _content_text(param: str, content: str | list[TextPart] | None) -> str:
    if isinstance(content, str):
        return content
    if not content:
        raise RequestError(f"{param} must be a text or a list of text parts", param=param)
    return "".join(_part_text(f"{param}.{index}", part) for index, part in enumerate(content))


def _part_text(param: str, part: TextPart) -> str:
    if part.type != "text":
        raise RequestError(
            f"{param}: parts of type {part.type[:64]!r} are not supported, only text",
            param=f"{param}.type",
            code="unsupported",
        )
    if part.text is None:
        raise RequestError(f"{param}.text is missing", param=f"{param}.text")
    return part.text
