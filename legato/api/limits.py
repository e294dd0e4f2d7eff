"""One table of every limit on what a client may send.

Lengths in tokens depend on the model: the generator checks them, and characters before it tokenizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from legato.core.errors import RequestError
from legato.core.sampling_params import MAX_LOGPROBS

LIMIT_EXCEEDED = "limit_exceeded"  # code of the errors


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest number that is served, and of what."""

    maximum: int
    unit: str

    def excess(self, count: int) -> str:
        """What a client with `count` of them is told."""
        return f"{count} {self.unit}; at most {self.maximum} are served"


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        # of every request; answered by transport/
        "body": Limit(8 * 2**20, "bytes in a body"),
        "json_values": Limit(2**18, "brackets and commas in a body"),
        "body_time": Limit(15, "seconds to send the body"),
        "header": Limit(64 * 2**10, "bytes of header"),
        "header_lines": Limit(100, "header lines"),
        "request_id": Limit(128, "characters in x-request-id"),
        # of the fields of a body; answered by check_limit, or by the schema before it looks at an element
        "fields": Limit(1024, "fields"),
        "aborts": Limit(1024, "request ids"),
        "messages": Limit(256, "messages"),
        "prompts": Limit(256, "prompts"),
        "n": Limit(16, "answers to a prompt"),
        "answers": Limit(512, "answers in a call"),
        "logprobs": Limit(MAX_LOGPROBS, "tokens with logprobs at a place"),
        "stop": Limit(16, "stop texts"),
        "stop_chars": Limit(256, "characters in a stop text"),
        "stop_token_ids": Limit(256, "stop token ids"),
        "logit_bias": Limit(1024, "biased tokens"),
        "cache_salt": Limit(256, "characters in cache_salt"),
        "tools": Limit(128, "tools"),
        "template_kwargs": Limit(32, "template arguments"),
        "schema": Limit(64 * 2**10, "bytes in a schema"),
        "schema_depth": Limit(64, "levels of nesting in a schema"),
        "regex": Limit(4 * 2**10, "characters in a regular expression"),
        "choices": Limit(1024, "choices"),
        "grammar": Limit(16 * 2**10, "characters in a grammar"),
    }
)


def check_limit(name: str, count: int, *, param: str) -> None:
    """Raise RequestError when `count` is over the limit `name`."""
    limit = LIMITS[name]
    if count > limit.maximum:
        raise RequestError(f"{param}: {limit.excess(count)}", param=param, code=LIMIT_EXCEEDED)
