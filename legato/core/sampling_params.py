"""How a request's tokens are chosen and when it ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from legato.core.errors import RequestError

MAX_WHOLE = 2**63 - 1  # what a message can carry
MAX_LOGPROBS = 20  # as in the OpenAI API


class FinishReason(StrEnum):
    """Why a request ended; every request has exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    TOOL_CALLS = "tool_calls"  # a chat's STOP after calls of tools; engines do not know it


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling settings, named as in the OpenAI API and vLLM.

    max_tokens          output tokens at most; None = all the room left in the context; 0 = none: the prompt
                        alone is computed, for its logprobs or for the prefix cache
    temperature         0 (or below 1e-5) takes the most probable token
    top_k               0 and -1 consider every token
    seed                of the random numbers; None = one is drawn when the request is accepted
    stop                texts that end the answer, or one text; never part of it unless
                        include_stop_str_in_output
    stop_token_ids      ids that end the answer, beside the model's own end-of-sequence ids
    min_tokens          no end before so many output tokens
    ignore_eos          end-of-sequence ids are tokens like others
    repetition_penalty  over prompt and output; presence and frequency penalties over output alone
    logit_bias          token id -> added to its logit
    logprobs            how many of the most probable tokens to report at each place, with their logarithms of
                        probability and the sampled token's own: 0 to 20; None = no logarithms at all
    prompt_logprobs     the same for every token of the prompt but its first, which nothing precedes
    grammar             an llguidance grammar that the answer keeps to, checked before it is queued
    Raises RequestError naming the field that does not fit, TypeError for a name that is no field.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None

    def __new__(cls, **settings: Any) -> "SamplingParams":
        """Here, before the fields are set, a name that is none of them still can be told with a remedy."""
        for name in settings.keys() - cls.__dataclass_fields__.keys():
            raise TypeError(
                f"SamplingParams has no setting {name!r}; {_remedy(name, cls.__dataclass_fields__)}"
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        texts = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _as_tuple("stop", texts, "a text or a list of texts"))
        ids = _as_tuple("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", ids)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            _check_flag(name, getattr(self, name))
        _check_range("temperature", self.temperature, 0, 2)
        _check_range("top_p", self.top_p, 0, 1, is_open=True)
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("presence_penalty", self.presence_penalty, -2, 2)
        _check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_range("repetition_penalty", self.repetition_penalty, 0.001, 1000)  # logits stay finite
        _check_whole("top_k", self.top_k, -1)
        _check_whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _check_whole("max_tokens", self.max_tokens, 0)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens is {self.min_tokens}, above max_tokens = {self.max_tokens}",
                    param="min_tokens",
                )
        if self.seed is not None:
            _check_whole("seed", self.seed, -(2**63), 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.grammar is not None and not isinstance(self.grammar, str):
            raise RequestError(f"grammar must be a text, not {self.grammar!r:.64}", param="grammar")
        _check_bias(self.logit_bias)
        _check_stop(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5


def _remedy(name: str, settings: Iterable[str]) -> str:
    if name in ("n", "best_of"):
        return "a prompt that is given several times gets as many answers"
    near = get_close_matches(name, settings, n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(settings)}"


def _as_tuple(name: str, values: Any, kind: str) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise RequestError(f"{name} must be {kind}, not {values!r}", param=name)
    return tuple(values)


def _check_flag(name: str, value: bool) -> None:
    if type(value) is not bool:
        raise RequestError(f"{name} must be True or False, not {value!r}", param=name)


def _check_bias(logit_bias: dict[int, float]) -> None:
    if not isinstance(logit_bias, dict):
        raise RequestError(
            f"logit_bias must be a dict from token id to bias, not {logit_bias!r}", param="logit_bias"
        )
    for token_id, bias in logit_bias.items():
        _check_range(f"logit_bias[{token_id}]", bias, -100, 100, param="logit_bias")


def _check_range(
    name: str, value: float, low: float, high: float, *, is_open: bool = False, param: str | None = None
) -> None:
    """is_open: `low` itself is outside."""
    is_number = type(value) in (int, float)
    if not is_number or not low <= value <= high or (is_open and value == low):
        opening = "(" if is_open else "["
        raise RequestError(
            f"{name} must be a number in {opening}{low:g}, {high:g}], not {value!r}", param=param or name
        )


def _check_whole(name: str, value: int, low: int, high: int = MAX_WHOLE) -> None:
    if type(value) is not int or not low <= value <= high:
        is_small = type(value) is not int or value < low
        span = f"of at least {low}" if high == MAX_WHOLE and is_small else f"from {low} to {high}"
        raise RequestError(f"{name} must be a whole number {span}, not {value!r}", param=name)


def _check_stop(stop: tuple[str, ...]) -> None:
    for text in stop:
        if not isinstance(text, str) or not text:
            raise RequestError(
                f"stop holds {text!r}; it takes texts, none of them empty: that would end every answer",
                param="stop",
            )
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise RequestError("stop holds half of a surrogate pair, which is no character", param="stop")
