"""Conversations in a body: their schema and limits; the frontend checks what they hold."""

import re
from typing import Annotated, Any

from pydantic import WithJsonSchema

from legato.api.bodies.generation import Body, at_most, one_of, optional
from legato.api.limits import LIMITS
from legato.core.errors import RequestError
from legato.tokenization.messages import MESSAGES

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

TEXT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
        },
    ]
}
TOOL_CALL = {
    "type": "object",
    "required": ["id", "type", "function"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "arguments": {"type": "string", "description": "the text of a JSON object"},
            },
        },
    },
}


def _message(title: str, roles: list[str], required: list[str], **fields: Any) -> dict[str, Any]:
    properties = {"role": {"enum": roles}, "content": TEXT, "name": {"type": "string", "minLength": 1}}
    return {
        "title": title,
        "type": "object",
        "required": ["role", *required],
        "properties": properties | fields,
    }


Messages = Annotated[
    list[Any],
    one_of(MESSAGES),
    at_most("messages"),
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": LIMITS["messages"].maximum,
            "items": {
                "anyOf": [
                    _message("Instruction or question", ["system", "developer", "user"], ["content"]),
                    _message(
                        "Answer",
                        ["assistant"],
                        [],
                        content={"anyOf": [*TEXT["anyOf"], {"type": "null"}]},
                        tool_calls={"type": "array", "items": TOOL_CALL},
                    ),
                    _message(
                        "Result of a tool",
                        ["tool"],
                        ["content", "tool_call_id"],
                        tool_call_id={
                            "type": "string",
                            "description": "the id of a call in an answer before",
                        },
                    ),
                ]
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
