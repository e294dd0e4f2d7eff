"""One table of every limit on what a client may send."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from legato.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest number that is served, and of what."""

    maximum: int
    unit: str


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        # of every request; answered by transport/
        "body": Limit(8 * 2**20, "bytes in a body"),
        "body_time": Limit(15, "seconds to send the body"),
        "header": Limit(64 * 2**10, "bytes of header"),
        "header_lines": Limit(100, "header lines"),
        "request_id": Limit(128, "characters in x-request-id"),
        # of the fields of a body; answered by check_limit
        "messages": Limit(256, "messages"),
        "prompts": Limit(256, "prompts"),
        "stop": Limit(16, "stop texts"),
        "stop_chars": Limit(256, "characters in a stop text"),
        "stop_token_ids": Limit(256, "stop token ids"),
        "logit_bias": Limit(1024, "biased tokens"),
        "cache_salt": Limit(256, "characters in cache_salt"),
        "template_kwargs": Limit(32, "template arguments"),
        # a token is seldom longer: a text over this would not fit the context, and need not be tokenized
        "chars_per_token": Limit(8, "characters for each token of the context"),
    }
)


def check_limit(name: str, count: int, *, param: str) -> None:
    """Raise RequestError when `count` is over the limit `name`."""
    limit = LIMITS[name]
    if count > limit.maximum:
        raise RequestError(
            f"{param}: {count} {limit.unit}; at most {limit.maximum} are served",
            param=param,
            code="limit_exceeded",
        )


def check_prompt_size(text_or_ids_len: int, max_model_len: int | None, *, is_text: bool, param: str) -> None:
    """Raise RequestError when a prompt cannot fit the context, seen from its size alone.

    The exact check is the engine's; this one spares the work of tokenizing megabytes.
    """
    if max_model_len is None:
        return
    maximum = max_model_len * (LIMITS["chars_per_token"].maximum if is_text else 1)
    if text_or_ids_len > maximum:
        unit = "characters" if is_text else "tokens"
        raise RequestError(
            f"{param} has {text_or_ids_len} {unit}, but this model's context is {max_model_len} tokens"
            + (f", for which at most {maximum} characters are read" if is_text else "")
            + "; shorten it",
            param=param,
            code="context_length_exceeded",
        )
