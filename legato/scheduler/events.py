"""What a step's output means for requests: a token, the end of a prompt, or a fault."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato.core.plan import RowError, TokenLogprobs
from legato.core.request import Request


@dataclass(frozen=True, slots=True)
class NewToken:
    """One sampled token of a request; `request.finish_reason` tells whether it was the last.

    index            among the request's output tokens
    prompt_logprobs  of a scored request, with its first token
    """

    request: Request
    index: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class PromptComputed:
    """A request that ended after its prompt, since it wanted no token."""

    request: Request
    prompt_logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """A request that ended because its logits gave no token, or no logprobs of its prompt."""

    request: Request
    error: RowError


Event = NewToken | PromptComputed | Broken
