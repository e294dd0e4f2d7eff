"""Bodies of the OpenAI routes, with vLLM's extensions."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from legato.api.bodies.generation import Body, GenerationBody, Int64, Texts, TokenIds, one_of
from legato.api.bodies.messages import Message, TemplateFields
from legato.api.limits import check_limit
from legato.core.errors import RequestError
from legato.frontend.generator import Prompt


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class OpenAIBody(GenerationBody):
    """What both OpenAI routes share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Int64 | None = None

    def given_params(self) -> dict[str, Any]:
        """As for every body; max_completion_tokens, the newer name, wins over max_tokens."""
        given = super().given_params()
        if self.max_completion_tokens is not None:
            if self.max_completion_tokens < 1:
                name = "max_completion_tokens"
                raise RequestError(f"{name} must be at least 1, not {self.max_completion_tokens}", param=name)
            given["max_tokens"] = self.max_completion_tokens
        return given

    def usage_options(self) -> dict[str, bool]:
        """Where a stream tells the usage. Raises RequestError when there is no stream to tell it in."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        options = self.stream_options or StreamOptions()
        return {"include_usage": options.include_usage, "continuous_usage": options.continuous_usage_stats}


class CompletionBody(OpenAIBody):
    """Body of /v1/completions."""

    prompt: Annotated[
        str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
        one_of("a text, a list of texts, a list of token ids (whole numbers) or a list of such lists"),
    ]

    def prompts(self) -> list[Prompt]:
        """The prompts in order. Raises RequestError when there is none, or one is an empty list."""
        prompt: Any = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt or [] in prompt:
            raise RequestError("prompt must hold at least one text or token id", param="prompt")
        prompts = [prompt] if isinstance(prompt[0], int) else prompt
        check_limit("prompts", len(prompts), param="prompt")
        return list(prompts)


class ChatBody(OpenAIBody, TemplateFields):
    """Body of /v1/chat/completions."""

    messages: list[Message]


class TokenizeBody(TemplateFields):
    """Body of /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """Body of /detokenize."""

    model: str | None = None
    tokens: TokenIds
