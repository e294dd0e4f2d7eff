"""Bodies of Anthropic's routes: /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from legato.api.bodies.anthropic.conversation import chat_messages
from legato.api.bodies.anthropic.tools import ToolFields
from legato.api.bodies.foreign_fields import SHAPES as CHAT_SHAPES
from legato.api.bodies.foreign_fields import Shape
from legato.api.bodies.generation import GenerationBody, Int64, Texts, at_most, one_of, optional
from legato.api.bodies.messages import TemplateFields
from legato.api.bodies.openai import MODEL
from legato.api.bodies.places import Messages
from legato.api.bodies.structured import Constraint, flat_format
from legato.api.limits import check_limit

TEXT: Shape = {"type": None, "text": None, "cache_control": None, "citations": None}
SHAPES: Mapping[str, Shape] = {
    **CHAT_SHAPES,
    "messages": {
        "role": None,
        "content": {
            **TEXT,
            "id": None,
            "name": None,
            "input": None,
            "tool_use_id": None,
            "content": TEXT,
            "is_error": None,
        },
    },
    "output_config": {"format": {"type": None, "schema": None}},
    "system": TEXT,
    "tool_choice": {"type": None, "name": None, "disable_parallel_tool_use": None},
    "tools": {
        "type": None,
        "name": None,
        "description": None,
        "input_schema": None,
        "strict": None,
        "cache_control": None,
    },
}


class ConversationFields(TemplateFields, ToolFields):
    """What both routes share: the conversation that a prompt is made of."""

    shapes = SHAPES

    model: str | None = MODEL
    messages: Annotated[
        list[Any],
        one_of('a list of messages such as [{"role": "user", "content": "Hello"}]'),
        at_most("messages"),
        Field(
            description="the conversation so far",
            examples=[[{"role": "user", "content": "What is a page?"}]],
        ),
    ]
    system: Annotated[str | list[Any] | None, one_of("a text or a list of text blocks")] = optional(
        "a system message before the conversation"
    )

    thinking: dict[str, Any] | None = optional("not read: legato knows no thinking apart from the answer")

    def ignored(self) -> list[str]:
        """As for every body; and `thinking`, unless it is to be off, which it is."""
        is_off = self.thinking is None or self.thinking.get("type") == "disabled"
        return [*super().ignored(), *([] if is_off else ["thinking"])]

    def as_chat(self) -> Messages:
        return chat_messages(self.messages, self.system)

    def template_options(self) -> dict[str, Any]:
        """As for every chat; but a last message of the assistant's is the beginning of the answer."""
        options = super().template_options()
        last = self.messages[-1] if self.messages else None
        is_begun = isinstance(last, dict) and last.get("role") == "assistant"
        if is_begun and self.continue_final_message is None and self.add_generation_prompt is None:
            options |= {"continue_final_message": True, "add_generation_prompt": False}
        return options


class CountTokensBody(ConversationFields):
    """Body of /v1/messages/count_tokens."""


class MessagesBody(ConversationFields, GenerationBody):
    """Body of /v1/messages."""

    max_tokens: Annotated[Int64, Field(description="tokens of the answer at most", examples=[256])]
    stop_sequences: Annotated[Texts | None, one_of("a list of texts"), at_most("stop")] = optional(
        "texts that end the answer and are no part of it"
    )
    stream: bool | None = optional("send the answer as events", False)
    output_config: dict[str, Any] | None = optional("its `format`: a JSON schema that the answer fits")

    def own_constraints(self) -> Iterable[Constraint]:
        return flat_format((self.output_config or {}).get("format"), param="output_config.format")

    def given_params(self) -> dict[str, Any]:
        given = super().given_params()
        if self.stop_sequences is not None:
            check_limit("stop_chars", max(map(len, self.stop_sequences), default=0), param="stop_sequences")
            given["stop"] = (*given.get("stop", ()), *self.stop_sequences)
        return given
