"""Conversations in a body: their schema and limits; the frontend checks what they hold."""

import re
from typing import Annotated, Any

from pydantic import WithJsonSchema

from legato.api.bodies.generation import Body, at_most, one_of, optional
from legato.core.errors import RequestError
from legato.tokenization.messages import MESSAGES, ROLES

# Arguments of a template that have a field of their own, or no way in.
TAKEN_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "continue_final_message",
        "messages",
        "self",
        "tools",
    }
)

TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    },
}
TOOL_CALL = {
    "type": "object",
    "required": ["id", "type", "function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        },
    },
}
Messages = Annotated[
    list[Any],
    one_of(MESSAGES),
    at_most("messages"),
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "title": "Message",
                "type": "object",
                "required": ["role"],
                "properties": {
                    "role": {"enum": ROLES},
                    "content": {"anyOf": [{"type": "string"}, TEXT_PARTS, {"type": "null"}]},
                    "tool_calls": {"type": "array", "items": TOOL_CALL},
                    "tool_call_id": {"type": "string"},
                },
            },
            "examples": [[{"role": "user", "content": "What is a page?"}]],
        }
    ),
]


class TemplateFields(Body):
    """How the model's chat template is applied."""

    add_generation_prompt: bool | None = optional("end the prompt with the start of an answer", True)
    continue_final_message: bool | None = optional(
        "end the prompt with the last message, the assistant's, so that the answer goes on with it", False
    )
    chat_template_kwargs: Annotated[dict[str, Any] | None, at_most("template_kwargs")] = optional(
        "further variables of the template"
    )

    def template_options(self) -> dict[str, Any]:
        """The keyword arguments of Generator.chat_prompt. Raises RequestError for names that it owns."""
        param = "chat_template_kwargs"
        arguments = self.chat_template_kwargs or {}
        for name in arguments:
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) or name in TAKEN_ARGUMENTS:
                raise RequestError(f"{param}: {name[:64]!r} cannot be set", param=param)
        is_continued = self.continue_final_message is True
        if is_continued and self.add_generation_prompt:
            name = "continue_final_message"
            raise RequestError(f"{name} and add_generation_prompt exclude each other", param=name)
        return {
            "add_generation_prompt": self.add_generation_prompt is not False and not is_continued,
            "continue_final_message": is_continued,
            **arguments,
        }
