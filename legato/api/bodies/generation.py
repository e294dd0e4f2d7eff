"""The fields that say how tokens are chosen, shared by every route that generates."""

import re
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from legato.api.bodies.foreign_fields import (
    ADJUSTED,
    NOTES,
    REMEDIES,
    SHAPES,
    UNSUPPORTED,
    Shape,
    is_harmless,
    unread_inside,
)
from legato.api.bodies.structured import StructuredFields
from legato.api.limits import LIMIT_EXCEEDED, LIMITS, check_limit
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams

# Fields of SamplingParams that a body has under the same name and type.
PLAIN_FIELDS = (
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "max_tokens",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "temperature",
    "top_k",
    "top_p",
)


def one_of(description: str) -> WrapValidator:
    """One fault for a union, in our words, instead of one a member."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("type", "must be {description}", {"description": description}) from None

    return WrapValidator(validate)


def at_most(name: str) -> BeforeValidator:
    """The limit `name` on a list or an object, checked before any of its elements; stands last."""

    return BeforeValidator(partial(check_count, name))


def check_count(name: str, value: Any) -> Any:
    """`value`, unless it is a list or an object with more than the limit `name`."""
    if isinstance(value, list | dict) and len(value) > LIMITS[name].maximum:
        raise PydanticCustomError(LIMIT_EXCEEDED, "{excess}", {"excess": LIMITS[name].excess(len(value))})
    return value


def optional(description: str, default: Any = None, **schema: Any) -> Any:
    """A field that may be absent or null; `default` is what holds then, where that is always the same.

    `schema` tells in the document of the routes what is checked elsewhere, e.g. maximum=2.
    """
    return Field(None, description=description, json_schema_extra={"default": default, **schema})


Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(gt=-(2**31), lt=2**31)]  # the vocabulary's own range is the engine's to check
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]


class Body(BaseModel):
    """Base of every body: strict types, finite numbers; unknown fields are kept, to be told about.

    refused  names of fields that the body itself refuses
    shapes   what is read inside the fields that hold objects
    """

    shapes: ClassVar[Mapping[str, Shape]] = SHAPES
    refused: ClassVar[frozenset[str]] = frozenset()
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_num_fields(cls, value: Any) -> Any:
        return check_count("fields", value)

    def ignored(self) -> list[str]:
        """The places in the body that nobody reads, e.g. "stream_options.x"."""
        extra = self.model_extra or {}
        known = self.refused | ADJUSTED.keys() | NOTES
        names = [name for name, value in extra.items() if value is not None and name not in known]
        for name, shape in self.shapes.items():
            if name not in names:
                names += unread_inside(name, getattr(self, name, None), shape)
        return names

    def adjusted(self) -> list[str]:
        """The fields that are taken with another value than the body gives."""
        extra = self.model_extra or {}
        return [name for name, kept in ADJUSTED.items() if not is_harmless(extra.get(name), kept)]


class GenerationBody(StructuredFields, Body):
    """What each body that generates may hold; null is like absent: the model's default, else the API's."""

    refused = frozenset(UNSUPPORTED)

    max_tokens: Int64 | None = optional("tokens of the answer at most", minimum=0)
    temperature: float | None = optional("0 to 2; 0 takes the most probable token", minimum=0, maximum=2)
    top_p: float | None = optional(
        "above 0, to 1: share of probability to draw from", exclusiveMinimum=0, maximum=1
    )
    top_k: Int64 | None = optional("how many tokens to draw from; 0 and -1: every one", minimum=-1)
    min_p: float | None = optional(
        "0 to 1: least probability, as a share of the highest", minimum=0, maximum=1
    )
    seed: int | None = optional("64 bits: the same seed gives the same answer; without one it is drawn")
    stop: Annotated[str | Texts | None, one_of("a text or a list of texts"), at_most("stop")] = optional(
        "texts that end the answer and are no part of it"
    )
    stop_token_ids: Annotated[
        Annotated[list[Int64], Field(fail_fast=True)] | None, at_most("stop_token_ids")
    ] = optional("further tokens that end the answer")
    include_stop_str_in_output: bool | None = optional("leave the stop text in the answer", False)
    min_tokens: Int64 | None = optional("no end before so many tokens", 0, minimum=0)
    ignore_eos: bool | None = optional("do not end where the model would", False)
    presence_penalty: float | None = optional(
        "-2 to 2, off the logits of generated tokens", 0, minimum=-2, maximum=2
    )
    frequency_penalty: float | None = optional(
        "-2 to 2, the same for each time that they came", 0, minimum=-2, maximum=2
    )
    repetition_penalty: float | None = optional(
        "above 1: tokens of prompt and answer become less probable", 1, minimum=0.001, maximum=1000
    )
    logit_bias: Annotated[dict[str, float] | None, at_most("logit_bias")] = optional(
        "token id to what is added to its logit, -100 to 100",
        propertyNames={"pattern": "^[0-9]{1,9}$"},
        maxProperties=LIMITS["logit_bias"].maximum,
    )
    skip_special_tokens: bool | None = optional("leave special tokens out of the text", True)
    cache_prompt: bool | None = optional("false computes the prompt anew, whatever is cached", True)
    request_id: str | None = optional("a name by which the request can be aborted, beside those it gets")
    rid: str | None = optional("another spelling of request_id")
    priority: Int64 | None = optional("lower runs earlier", 0)
    cache_salt: str | None = optional("prompts with different salts share no cached prefix", "")
    truncate_prompt_tokens: Annotated[
        Literal[-1] | Annotated[int, Field(ge=1, lt=2**63)] | None, one_of("-1, or at least 1")
    ] = optional("keep the last so many tokens of the prompt; -1: as many as leave room for max_tokens")
    add_special_tokens: bool | None = optional("put before a text what the model expects there", True)

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """What the body says, else what `defaults` say. Raises RequestError naming the field at fault."""
        for name, value in (self.model_extra or {}).items():
            if name in UNSUPPORTED and not is_harmless(value, UNSUPPORTED[name]):
                raise unsupported(name)
        given = self.given_params()
        if given.get("max_tokens") == 0 and not self.wants_prompt:
            raise RequestError("max_tokens must be at least 1, not 0", param="max_tokens")
        return SamplingParams(**{**defaults, **given})

    @property
    def wants_prompt(self) -> bool:
        """Something is told of the prompt, so that an answer of no tokens is worth asking for."""
        return False

    def given_params(self) -> dict[str, Any]:
        """The arguments of SamplingParams that the body sets."""
        given = {name: getattr(self, name) for name in PLAIN_FIELDS if getattr(self, name) is not None}
        if self.stop is not None:
            texts = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
            check_limit("stop_chars", max(map(len, texts), default=0), param="stop")
            given["stop"] = texts
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        if self.constraint is not None:
            given["grammar"] = self.constraint.grammar
        return given

    def submit_options(self) -> dict[str, Any]:
        """The keyword arguments of open_stream beside prompts and params."""
        check_limit("cache_salt", len(self.cache_salt or ""), param="cache_salt")
        own_salt = uuid.uuid4().hex if self.cache_prompt is False else ""  # shared with nobody
        return {
            "priority": self.priority or 0,
            "cache_salt": own_salt or self.cache_salt or "",
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "add_special_tokens": self.add_special_tokens is not False,
            **({"grammar_field": self.constraint.param} if self.constraint else {}),
        }

    def names(self) -> list[str]:
        """Names of the client's own by which the request can be aborted."""
        given = {"request_id": self.request_id, "rid": self.rid}
        for param, name in given.items():
            check_limit("request_id", len(name or ""), param=param)
        return [name for name in given.values() if name]


def unsupported(param: str) -> RequestError:
    """The refusal of a field that asks for what legato does not do."""
    value = " with this value" if UNSUPPORTED.get(param) else ""
    remedy = REMEDIES.get(param, f"is not supported here{value}; leave it out")
    return RequestError(f"{param} {remedy}", param=param, code="unsupported")


def _token_id(key: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,10}", key):
        raise RequestError(f"logit_bias: {key[:32]!r} is not a token id", param="logit_bias")
    return int(key)
