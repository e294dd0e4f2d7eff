"""The generator: what every route, the command line and the Python API ask for text."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.timing import Course, Timing
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.tools import Tool

Prompt = str | Sequence[int]
ChatMessage = dict[str, Any]

CONTEXT = -1  # as truncate_prompt_tokens: whatever leaves room for the answer


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; cached_tokens are those of the prompt whose K/V was in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What one step added to one answer.

    index          of the answer in the call: answer j to prompt i has index i * n + j
    text           whole characters only; "" while a character or a possible stop text is incomplete
    finish_reason  set exactly once an answer, in its last delta
    stop_reason    the stop text or stop token id that ended the answer, when one did
    logprobs       of each of token_ids, when they were asked for
    prompt_logprobs  of each token of the prompt but its first, in an answer's first delta, when asked for
    usage          so far; final in the last delta
    timing         so far
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    timing: Timing = Timing()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInfo:
    """special_tokens: role -> text, e.g. {"eos": "<|im_end|>"}; chat_template: its Jinja source."""

    special_tokens: Mapping[str, str]
    chat_template: str | None
    vocab_size: int


class TextStream(Protocol):
    """The deltas of one call, as they come; ends when each prompt's answer has ended.

    prompts         token ids of each prompt of the call, as they were computed
    first_token_at  when the first prompt's first token is predicted to come, by time.perf_counter(); None
                    where that cannot be told
    courses         of each answer, by its index, from when it was sent to the engine, as far as that has told
    request_ids     of each answer, under which the engine has it
    Iterating raises EngineDiedError or another LegatoError when an answer fails.
    """

    @property
    def prompts(self) -> Sequence[Sequence[int]]: ...

    @property
    def first_token_at(self) -> float | None: ...

    @property
    def courses(self) -> Sequence[Course]: ...

    @property
    def request_ids(self) -> Sequence[str]: ...

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    def abort(self, reason: FinishReason = FinishReason.ABORT) -> None:
        """End what still runs, from any thread: each such answer gets a last delta with this reason.

        With TIMEOUT, and no token so far, iterating raises QueueTimeoutError instead.
        """

    async def aclose(self) -> None:
        """Abort what still runs, for nobody reads any more; harmless after the end."""


class Vocabulary(Protocol):
    """What single tokens are; special_ids are those that a text may leave out."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text that does not begin with it; b"" for an id without a token."""
        ...


class Generator(Protocol):
    """Makes text for one served model.

    tool_format  how the model writes calls of tools
    vocabulary   None when the model has no tokenizer
    """

    @property
    def tool_format(self) -> ToolFormat: ...

    @property
    def vocabulary(self) -> Vocabulary | None: ...

    async def submit(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        truncate_prompt_tokens: int | None = None,
        add_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
        first_token_by: float | None = None,
    ) -> TextStream:
        """Queue n answers to each prompt at once; returns when the engine has accepted every one of them.

        The answers to one prompt have seeds of their own, the first the params' own; they share its K/V.
        The engine is shared fairly between tenants; those without a name count as one.
        truncate_prompt_tokens keeps the last so many tokens of each prompt, CONTEXT as many as leave room
        for max_tokens. shown_ids are special tokens whose text is shown, though others are skipped.
        first_token_by is a moment of time.perf_counter().
        Raises RequestError (nothing is queued), OverloadedError, NotReadyError, or SlowFirstTokenError when
        the first prompt's first token is predicted to come after first_token_by.
        """
        ...

    async def chat_prompt(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> list[int]:
        """Render messages, and the tools, by the model's chat template; the ids of the prompt.

        continue_final_message ends it with the last message's text, which must be the assistant's.
        add_special_tokens puts before it what the model expects before a text; most templates do so.
        Raises RequestError when the model has no template or the template refuses the messages.
        """
        ...

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    async def detokenize(self, token_ids: Sequence[int]) -> str: ...

    def tokenizer_info(self) -> TokenizerInfo:
        """What the model's tokenizer is. Raises RequestError when the model has none."""
        ...
