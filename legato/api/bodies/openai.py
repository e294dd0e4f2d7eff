"""Bodies of the OpenAI routes, with vLLM's extensions."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

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
from legato.api.bodies.report import Count, ReportFields
from legato.api.bodies.tools import ToolFields
from legato.api.limits import LIMITS, check_limit
from legato.core.errors import RequestError
from legato.frontend.generator import Prompt

MODEL = optional("a served name; without one, the first is asked")


class OpenAIBody(GenerationBody, ReportFields):
    """What both OpenAI routes share."""

    model: str | None = MODEL
    max_completion_tokens: Int64 | None = optional("newer name of max_tokens, and wins over it", minimum=0)

    def given_params(self) -> dict[str, Any]:
        """As for every body; max_completion_tokens, the newer name, wins over max_tokens."""
        given = super().given_params()
        if self.max_completion_tokens is not None:
            if self.max_completion_tokens < (0 if self.wants_prompt else 1):
                name = "max_completion_tokens"
                raise RequestError(f"{name} must be at least 1, not {self.max_completion_tokens}", param=name)
            given["max_tokens"] = self.max_completion_tokens
        given["logprobs"] = self.num_top_logprobs
        given["prompt_logprobs"] = self.prompt_logprobs
        return given

    def adjusted(self) -> list[str]:
        """As for every body; and max_tokens, where its newer name says otherwise."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        return [*super().adjusted(), *(["max_tokens"] if len(limits) > 1 else [])]

    @property
    def wants_prompt(self) -> bool:
        return self.prompt_logprobs is not None


def _check_num_prompts(prompt: Any) -> Any:
    """Count prompts before one is looked at; how many ids one may have depends on the model."""
    is_one = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is int
    return prompt if is_one else check_count("prompts", prompt)


def _none_for_false(logprobs: Any) -> Any:
    """`false`, as chat has it, asks for no logprobs."""
    return None if logprobs is False else logprobs


class CompletionBody(OpenAIBody):
    """Body of /v1/completions."""

    prompt: Annotated[
        str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
        one_of("a text, a list of texts, a list of token ids (whole numbers) or a list of such lists"),
        BeforeValidator(_check_num_prompts),
        Field(description="one prompt or several, as texts or token ids", examples=["Hello, I am"]),
    ]

    echo: bool | None = optional("put the prompt before the answer; then max_tokens may be 0", False)
    logprobs: Annotated[Count | None, BeforeValidator(_none_for_false)] = optional(
        "logarithms of the probability of each token, and of so many of the most probable ones at its place",
        maximum=LIMITS["logprobs"].maximum,
    )

    @property
    def num_top_logprobs(self) -> int | None:
        check_limit("logprobs", self.logprobs or 0, param="logprobs")
        return self.logprobs

    @property
    def wants_prompt(self) -> bool:
        return super().wants_prompt or self.echo is True

    def given_params(self) -> dict[str, Any]:
        """As for every body; an echoed prompt has logprobs if the answer has."""
        given = super().given_params()
        if self.echo:
            wanted = [each for each in (self.logprobs, self.prompt_logprobs) if each is not None]
            given["prompt_logprobs"] = max(wanted, default=None)
        return given

    def prompts(self) -> list[Prompt]:
        """The prompts in order. Raises RequestError when there is none, or one is an empty list."""
        prompt: Any = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt or [] in prompt:
            raise RequestError("prompt must hold at least one text or token id", param="prompt")
        return [prompt] if isinstance(prompt[0], int) else list(prompt)


class ChatBody(OpenAIBody, TemplateFields, ToolFields):
    """Body of /v1/chat/completions."""

    messages: Annotated[Messages, Field(description="the conversation so far")]
    logprobs: bool | None = optional("logarithms of the probability of each token", False)
    top_logprobs: Count | None = optional(
        "and of so many of the most probable ones at its place", 0, maximum=LIMITS["logprobs"].maximum
    )
    add_special_tokens: bool | None = optional(
        "put before the prompt what the model expects before a text, if the template does not", False
    )

    @property
    def num_top_logprobs(self) -> int | None:
        check_limit("logprobs", self.top_logprobs or 0, param="top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def template_options(self) -> dict[str, Any]:
        return super().template_options() | {"add_special_tokens": self.add_special_tokens is True}


class TokenizeBody(TemplateFields, ToolFields):
    """Body of /tokenize: a prompt or messages."""

    model: str | None = MODEL
    prompt: str | None = Field(None, description="a text; or give messages", examples=["Hello, I am"])
    messages: Messages | None = optional("a conversation; or give prompt")
    add_special_tokens: bool | None = optional(
        "put before a text what the model expects there; true for prompt, false for messages"
    )

    def template_options(self) -> dict[str, Any]:
        return super().template_options() | {"add_special_tokens": self.add_special_tokens is True}


class DetokenizeBody(Body):
    """Body of /detokenize."""

    model: str | None = MODEL
    tokens: Annotated[TokenIds, Field(description="token ids", examples=[[72, 105]])]
