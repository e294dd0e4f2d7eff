"""Grammars as llguidance reads them, `SamplingParams.grammar`, from schemas, patterns and choices.

A whole grammar comes from json_schema_grammar(), regex_grammar() or choice_grammar(). One with text around
its JSON, as calls of tools have, is written in Lark, of lark_json(), lark_text() and lark_token():

    f"start: {lark_text('<tool_call>')} {lark_json(schema)} {lark_text('</tool_call>')}"
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from legato.tokenization.schema_form import for_llguidance

JsonSchema = Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Whitespace:
    """Where an answer in JSON may have space: after a comma and after a colon, one at most, and nowhere else.

    pattern    a regular expression for what may stand, once, wherever JSON allows space
    is_compact nowhere at all
    """

    pattern: str | None = None
    is_compact: bool = False

    def options(self) -> dict[str, Any]:
        """What llguidance calls it, in the key x-guidance of a schema."""
        if self.pattern is not None:
            return {"whitespace_pattern": self.pattern}
        space = "" if self.is_compact else " ?"
        return {"whitespace_flexible": False, "item_separator": f",{space}", "key_separator": f":{space}"}


SPARE = Whitespace()


def json_schema_grammar(schema: JsonSchema, whitespace: Whitespace = SPARE) -> str:
    """The grammar of JSON texts that `schema` accepts; {"type": "object"} is any object.

    Properties come in the schema's order. What a schema says beyond llguidance's understanding makes the
    grammar an invalid one, which its check before queueing refuses with the reason.
    """
    return json.dumps({"grammars": [{"json_schema": _prepared(schema, whitespace)}]}, ensure_ascii=False)


def regex_grammar(pattern: str) -> str:
    """The grammar of texts that `pattern`, in Rust's syntax without look-around, matches from end to end."""
    from llguidance import LLMatcher  # where it is needed: most servers never hear of a grammar

    return LLMatcher.grammar_from_regex(pattern)


def choice_grammar(choices: Iterable[str]) -> str:
    """The grammar of exactly these texts."""
    return "start: " + " | ".join(map(lark_text, choices))


def lark_json(schema: JsonSchema, whitespace: Whitespace = SPARE) -> str:
    """A part of a Lark rule: JSON that `schema` accepts. It must not stand within a terminal."""
    return f"%json {json.dumps(_prepared(schema, whitespace), ensure_ascii=False)}"


def lark_text(text: str) -> str:
    """A part of a Lark rule: `text` itself, spelled with ordinary tokens, never with a special one."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_token(token_id: int) -> str:
    """A part of a Lark rule: one token, e.g. the special token that opens a call. Not within a terminal."""
    return f"<[{token_id}]>"


def _prepared(schema: JsonSchema, whitespace: Whitespace) -> dict[str, Any]:
    """The schema with llguidance's options, which are ours to choose."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {
        **for_llguidance(schema),
        "x-guidance": {**whitespace.options(), "lenient": False, "coerce_one_of": False},
    }
