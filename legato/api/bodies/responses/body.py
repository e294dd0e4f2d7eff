"""Body of /v1/responses: OpenAI's Responses API as far as nothing is stored between two calls."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from legato.api.bodies.foreign_fields import SHAPES as CHAT_SHAPES
from legato.api.bodies.foreign_fields import Shape
from legato.api.bodies.generation import GenerationBody, Int64, at_most, one_of, optional, unsupported
from legato.api.bodies.messages import TemplateFields
from legato.api.bodies.openai import MODEL
from legato.api.bodies.places import Messages
from legato.api.bodies.responses.conversation import messages_of_items
from legato.api.bodies.responses.tools import FlatToolFields
from legato.api.bodies.structured import Constraint, flat_format
from legato.core.errors import RequestError
from legato.core.sampling_params import MAX_LOGPROBS, SamplingParams

LOGPROBS = "message.output_text.logprobs"
# What OpenAI's tools and models add to an answer: legato has neither, so there is nothing to leave out.
EMPTY_INCLUDES = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
PLAIN_TEXT = {"type": "text"}
STATELESS = "nothing is stored between two calls"
PART: Shape = {"type": None, "text": None, "refusal": None, "annotations": None, "logprobs": None}
# These need what an earlier call or the server has stored, or a call that goes on without its client.
NEEDS_A_STORE = ("background", "conversation", "previous_response_id", "prompt")


SHAPES: Mapping[str, Shape] = {
    **CHAT_SHAPES,
    "input": {
        "type": None,
        "role": None,
        "content": PART,
        "call_id": None,
        "name": None,
        "arguments": None,
        "output": PART,
        # of an answer that is sent back
        "id": None,
        "status": None,
    },
    "stream_options": {"include_usage": None, "include_obfuscation": None},
    "text": {"format": dict.fromkeys(("type", "name", "description", "schema", "strict"))},
    "tool_choice": {"type": None, "name": None, "mode": None, "tools": {"type": None, "name": None}},
    "tools": {"type": None, "name": None, "description": None, "parameters": None, "strict": None},
}


class ResponsesBody(GenerationBody, TemplateFields, FlatToolFields):
    """Body of /v1/responses."""

    shapes = SHAPES

    model: str | None = MODEL
    input: Annotated[
        str | list[Any],
        one_of("a text or a list of items"),
        at_most("messages"),
        Field(description="a text, or the conversation so far", examples=["What is a page?"]),
    ]
    instructions: str | None = optional("a system message before the conversation")
    max_output_tokens: Int64 | None = optional("tokens of the answer at most; wins over max_tokens")
    stream: bool | None = optional("send the answer as events", False)
    stream_options: dict[str, Any] | None = optional(
        "a stream always ends with its usage, so nothing is asked"
    )
    include: list[str] | None = optional(f"{LOGPROBS}: the logarithms of the tokens' probabilities")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = optional(
        "how many of the most probable tokens stand beside each token"
    )
    metadata: Annotated[dict[str, str] | None, at_most("fields")] = optional("stands in the response again")
    user: str | None = optional("stands in the response again")
    text: dict[str, Any] | None = optional("the form of the answer", {"format": PLAIN_TEXT})
    background: bool | None = optional(f"not true: {STATELESS}", False)
    conversation: Any = optional(f"refused: {STATELESS}")
    previous_response_id: str | None = optional(f"refused: {STATELESS}")
    prompt: Any = optional(f"refused: {STATELESS}")
    truncation: str | None = optional("only `disabled`: what is too long is refused", "disabled")

    def adjusted(self) -> list[str]:
        """As for every body; obfuscation, which would pad the events of a stream; an overruled max_tokens."""
        is_padded = (self.stream_options or {}).get("include_obfuscation") is True
        is_overruled = len({self.max_tokens, self.max_output_tokens} - {None}) > 1
        return [
            *super().adjusted(),
            *(["stream_options.include_obfuscation"] if is_padded else []),
            *(["max_tokens"] if is_overruled else []),
        ]

    def as_chat(self) -> Messages:
        return messages_of_items(self.input, self.instructions)

    def num_logprobs(self) -> int | None:
        """How many tokens are told beside each one; None = no logprobs at all. Raises RequestError."""
        includes = self.include or []
        for name in includes:
            if name != LOGPROBS and name not in EMPTY_INCLUDES:
                known = ", ".join((LOGPROBS, *EMPTY_INCLUDES))
                raise RequestError(f"include: {name[:64]!r} is none of {known}", param="include")
        return self.top_logprobs or 0 if LOGPROBS in includes or self.top_logprobs else None

    def given_params(self) -> dict[str, Any]:
        for name in NEEDS_A_STORE:
            if getattr(self, name) not in (None, False):
                reason = f"{name} is not supported: {STATELESS}; give the whole conversation as input"
                raise RequestError(reason, param=name, code="unsupported")
        if self.truncation not in (None, "disabled"):
            raise unsupported("truncation")
        given = super().given_params()
        if self.max_output_tokens is not None:
            if self.max_output_tokens < 1:
                name = "max_output_tokens"
                raise RequestError(f"{name} must be at least 1, not {self.max_output_tokens}", param=name)
            given["max_tokens"] = self.max_output_tokens
        return given | {"logprobs": self.num_logprobs()}

    def own_constraints(self) -> Iterable[Constraint]:
        return flat_format((self.text or {}).get("format"), param="text.format")

    def settings(self, name: str, params: SamplingParams) -> dict[str, Any]:
        """The fields of a response that repeat the request, with what holds where it says nothing."""
        return {
            "model": name,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata or {},
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "temperature": params.temperature,
            "text": {"format": (self.text or {}).get("format") or PLAIN_TEXT},
            "top_logprobs": self.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": "disabled",
            "user": self.user,
            **self.tool_settings(),
        }
