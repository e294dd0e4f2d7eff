"""Bodies of the OpenAI routes, with vLLM's extensions."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from legato.api.bodies.generation import (
    Body,
    GenerationBody,
    Int64,
    Texts,
    TokenIds,
    check_count,
    one_of,
    optional,
)
from legato.api.bodies.messages import Messages, TemplateFields
from legato.core.errors import RequestError
from legato.frontend.generator import Prompt

MODEL = optional("a served name; without one, the first is asked")


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool = Field(default=False, description="a last chunk with the usage of the whole call")
    continuous_usage_stats: bool = Field(default=False, description="the usage so far in every chunk")


class OpenAIBody(GenerationBody):
    """What both OpenAI routes share."""

    model: str | None = MODEL
    stream: bool | None = optional("send the answer as it comes", False)
    stream_options: StreamOptions | None = optional("what a stream tells beside the text")
    max_completion_tokens: Int64 | None = optional("newer name of max_tokens, and wins over it")

    def given_params(self) -> dict[str, Any]:
        """As for every body; max_completion_tokens, the newer name, wins over max_tokens."""
        given = super().given_params()
        if self.max_completion_tokens is not None:
            if self.max_completion_tokens < 1:
                name = "max_completion_tokens"
                raise RequestError(f"{name} must be at least 1, not {self.max_completion_tokens}", param=name)
            given["max_tokens"] = self.max_completion_tokens
        return given

    def adjusted(self) -> list[str]:
        """As for every body; and max_tokens, where its newer name says otherwise."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        return [*super().adjusted(), *(["max_tokens"] if len(limits) > 1 else [])]

    def usage_options(self) -> dict[str, bool]:
        """Where a stream tells the usage. Raises RequestError when there is no stream to tell it in."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        options = self.stream_options or StreamOptions()
        return {"include_usage": options.include_usage, "continuous_usage": options.continuous_usage_stats}


def _check_num_prompts(prompt: Any) -> Any:
    """Count prompts before one is looked at; how many ids one may have depends on the model."""
    is_one = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is int
    return prompt if is_one else check_count("prompts", prompt)


class CompletionBody(OpenAIBody):
    """Body of /v1/completions."""

    prompt: Annotated[
        str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
        one_of("a text, a list of texts, a list of token ids (whole numbers) or a list of such lists"),
        BeforeValidator(_check_num_prompts),
        Field(description="one prompt or several, as texts or token ids", examples=["Hello, I am"]),
    ]

    def prompts(self) -> list[Prompt]:
        """The prompts in order. Raises RequestError when there is none, or one is an empty list."""
        prompt: Any = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt or [] in prompt:
            raise RequestError("prompt must hold at least one text or token id", param="prompt")
        return [prompt] if isinstance(prompt[0], int) else list(prompt)


class ChatBody(OpenAIBody, TemplateFields):
    """Body of /v1/chat/completions."""

    messages: Annotated[Messages, Field(description="the conversation so far")]


class TokenizeBody(TemplateFields):
    """Body of /tokenize: a prompt or messages."""

    model: str | None = MODEL
    prompt: str | None = Field(None, description="a text; or give messages", examples=["Hello, I am"])
    messages: Messages | None = optional("a conversation; or give prompt")
    add_special_tokens: bool = Field(True, description="put before prompt what the model expects there")


class DetokenizeBody(Body):
    """Body of /detokenize."""

    model: str | None = MODEL
    tokens: Annotated[TokenIds, Field(description="token ids", examples=[[72, 105]])]
