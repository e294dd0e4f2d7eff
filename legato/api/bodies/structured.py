"""Fields that hold an answer to a form: OpenAI's response_format, vLLM's structured_outputs and older names.

Whoever takes a schema from a body passes it through json_schema(), which knows the limits; its grammar is
made by `tokenization.grammar_text.json_schema_grammar`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, WithJsonSchema

from legato.api.limits import check_limit
from legato.api.transport.json_body import parse_strictly
from legato.core.errors import RequestError
from legato.tokenization.grammar_text import (
    SPARE,
    JsonSchema,
    Whitespace,
    choice_grammar,
    json_schema_grammar,
    regex_grammar,
)

ANY_OBJECT = {"type": "object"}
JSON_SCHEMA_SHAPE = '{"type": "json_schema", "json_schema": {"name": "answer", "schema": {...}}}'
FORMATS = f'{{"type": "text"}}, {{"type": "json_object"}} or {JSON_SCHEMA_SHAPE}'
FLAT_FORMATS = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "schema": {...}}'
SHAPE_OF_JSON_SCHEMA = ("name", "description", "schema", "strict")
SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")


class Constraint(NamedTuple):
    """What an answer is held to, and the field that says so."""

    param: str
    grammar: str


class StructuredFields(BaseModel):
    """At most one of these fields may constrain an answer."""

    response_format: Annotated[
        dict[str, Any] | None,
        Field(description="the form of the answer: text, any JSON object, or JSON that fits a schema"),
        WithJsonSchema(
            {
                "type": ["object", "null"],
                "required": ["type"],
                "properties": {
                    "type": {"enum": ["text", "json_object", "json_schema"]},
                    "json_schema": {
                        "type": "object",
                        "required": ["schema"],
                        "properties": {
                            "name": {"type": "string"},
                            "description": {"type": "string"},
                            "schema": {"type": "object"},
                            "strict": {"type": ["boolean", "null"]},
                        },
                    },
                },
                "examples": [{"type": "text"}],
            }
        ),
    ] = None
    structured_outputs: Annotated[
        dict[str, Any] | None,
        Field(description="the form of the answer, one of: json, regex, choice, grammar, json_object"),
        WithJsonSchema(
            {
                "type": ["object", "null"],
                "properties": {
                    "json": {"type": ["object", "string"]},
                    "regex": {"type": "string"},
                    "choice": {"type": "array", "items": {"type": "string"}},
                    "grammar": {"type": "string", "description": "in Lark or GBNF"},
                    "json_object": {"type": "boolean"},
                    "whitespace_pattern": {"type": "string"},
                    "disable_any_whitespace": {"type": "boolean"},
                },
                "examples": [{"choice": ["yes", "no"]}],
            }
        ),
    ] = None
    guided_json: Annotated[
        Any,
        Field(description="structured_outputs.json"),
        WithJsonSchema({"type": ["object", "string", "null"], "default": None}),
    ] = None
    guided_regex: str | None = Field(None, description="structured_outputs.regex")
    guided_choice: Annotated[
        Any,
        Field(description="structured_outputs.choice"),
        WithJsonSchema({"type": ["array", "null"], "items": {"type": "string"}, "default": None}),
    ] = None
    guided_grammar: str | None = Field(None, description="structured_outputs.grammar")
    guided_whitespace_pattern: str | None = Field(None, description="structured_outputs.whitespace_pattern")

    @cached_property
    def constraint(self) -> Constraint | None:
        """What the answer is held to. Raises RequestError for a field that does not fit, and for two."""
        found = [
            *_response_format(self.response_format),
            *_structured_outputs(self.structured_outputs),
            *self._guided(),
            *self.own_constraints(),
        ]
        if len(found) > 1:
            raise RequestError(
                f"{found[0].param} and {found[1].param} both constrain the answer; give one",
                param=found[1].param,
            )
        return found[0] if found else None

    def own_constraints(self) -> Iterable[Constraint]:
        """Those of fields that one route has for itself. Raises RequestError."""
        return ()

    def _guided(self) -> Iterable[Constraint]:
        pattern = self.guided_whitespace_pattern
        if pattern is not None and self.guided_json is None:
            raise RequestError(
                "guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern"
            )
        for kind in ("json", "regex", "choice", "grammar"):
            param = f"guided_{kind}"
            value = getattr(self, param)
            if value is not None:
                yield Constraint(param, GRAMMARS[kind](value, _whitespace(pattern, False, param), param))


def json_schema(value: Any, *, param: str) -> JsonSchema:
    """A schema as a client gave it, as an object or its text. Raises RequestError for one over the limits."""
    if isinstance(value, str):
        check_limit("schema", len(value.encode()), param=param)
        try:
            value = parse_strictly(value.encode())
        except json.JSONDecodeError as error:
            raise RequestError(f"{param}: the schema is not valid JSON: {error.msg}", param=param) from None
    if not isinstance(value, dict | bool):
        raise RequestError(f"{param}: a schema must be an object, not {json.dumps(value)[:64]}", param=param)
    check_limit("schema_depth", _depth(value), param=param)
    check_limit("schema", len(json.dumps(value, ensure_ascii=False).encode()), param=param)
    return value


def flat_format(value: Any, *, param: str) -> Iterable[Constraint]:
    """A form as the newer APIs write it, the schema beside the type. Raises RequestError."""
    match value:
        case None | {"type": "text"}:
            pass
        case {"type": "json_object"}:
            yield Constraint(param, json_schema_grammar(ANY_OBJECT))
        case {"type": "json_schema", "schema": schema}:
            yield Constraint(param, json_schema_grammar(json_schema(schema, param=f"{param}.schema")))
        case _:
            raise RequestError(f"{param} must be {FLAT_FORMATS}", param=param)


def _response_format(value: dict[str, Any] | None) -> Iterable[Constraint]:
    param = "response_format"
    kind = None if value is None else value.get("type")
    if value is None or value == {"type": "text"}:
        return
    if value == {"type": "json_object"}:
        yield Constraint(param, json_schema_grammar(ANY_OBJECT))
    elif kind == "json_schema":
        yield Constraint(param, json_schema_grammar(_wrapped_schema(value, param)))
    elif kind in ("text", "json_object"):
        others = ", ".join(sorted(value.keys() - {"type"}))[:64]
        raise RequestError(
            f"{param}: type {kind} takes nothing beside it, and here is {others};"
            f" a schema is given as {JSON_SCHEMA_SHAPE}",
            param=param,
        )
    else:
        raise RequestError(f"{param} must be {FORMATS}", param=param)


def _wrapped_schema(value: dict[str, Any], param: str) -> JsonSchema:
    wrapper = value.get("json_schema")
    if not isinstance(wrapper, dict) or len(value) > 2 or "schema" not in wrapper:
        raise RequestError(f"{param} must be {JSON_SCHEMA_SHAPE}", param=param)
    unknown = sorted(wrapper.keys() - SHAPE_OF_JSON_SCHEMA)
    if unknown:
        raise RequestError(
            f"{param}: json_schema has no {unknown[0][:64]!r}; {JSON_SCHEMA_SHAPE}", param=param
        )
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if not isinstance(wrapper.get(name), kind | None):
            raise RequestError(f"{param}: json_schema.{name} must be of type {kind.__name__}", param=param)
    return json_schema(wrapper["schema"], param=param)


def _structured_outputs(value: dict[str, Any] | None) -> Iterable[Constraint]:
    param = "structured_outputs"
    if value is None:
        return
    given = {name: each for name, each in value.items() if each is not None}
    options = {name: given.pop(name, None) for name in ("whitespace_pattern", *SWITCHES)}
    kinds = [name for name in given if name in GRAMMARS and given[name] is not False]
    unknown = sorted(given.keys() - GRAMMARS.keys())
    if unknown:
        raise RequestError(f"{param}: {unknown[0][:64]!r} is not supported", param=param, code="unsupported")
    if len(kinds) != 1:
        raise RequestError(f"{param} must have exactly one of {', '.join(GRAMMARS)}", param=param)
    whitespace = _whitespace_option(options, kinds[0], param)
    yield Constraint(param, GRAMMARS[kinds[0]](given[kinds[0]], whitespace, param))


def _whitespace_option(options: Mapping[str, Any], kind: str, param: str) -> Whitespace:
    """What the other keys of structured_outputs say. Raises RequestError for what does not fit `kind`."""
    for name in SWITCHES:
        if not isinstance(options[name], bool | None):
            raise RequestError(f"{param}: {name} must be true or false", param=param)
    if options["disable_additional_properties"]:
        raise RequestError(
            f"{param}: disable_additional_properties is not supported;"
            ' say "additionalProperties": false in the schema',
            param=param,
            code="unsupported",
        )
    pattern, is_compact = options["whitespace_pattern"], options["disable_any_whitespace"] is True
    if (pattern is not None or is_compact) and not kind.startswith("json"):
        raise RequestError(f"{param}: whitespace can be chosen for JSON alone, not for {kind}", param=param)
    return _whitespace(pattern, is_compact, param)


def _whitespace(pattern: Any, is_compact: bool, param: str) -> Whitespace:
    if pattern is None:
        return Whitespace(is_compact=True) if is_compact else SPARE
    if is_compact:
        raise RequestError(f"{param}: whitespace_pattern contradicts disable_any_whitespace", param=param)
    _check_regex(pattern, "whitespace_pattern", param)
    return Whitespace(pattern)


def _check_regex(value: Any, name: str, param: str) -> None:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{param}: {name} must be a text that is not empty", param=param)
    check_limit("regex", len(value), param=param)
    if (len(value) - len(value.rstrip("\\"))) % 2:  # llguidance would leave it out
        raise RequestError(f"{param}: {name} ends with a backslash that escapes nothing", param=param)


def _depth(value: Any) -> int:
    """Levels of lists and objects within each other, without recursion."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _of_json(value: Any, whitespace: Whitespace, param: str) -> str:
    return json_schema_grammar(json_schema(value, param=param), whitespace)


def _of_json_object(value: Any, whitespace: Whitespace, param: str) -> str:
    if value is not True:
        raise RequestError(f"{param}: json_object must be true or false", param=param)
    return json_schema_grammar(ANY_OBJECT, whitespace)


def _of_regex(value: Any, whitespace: Whitespace, param: str) -> str:
    _check_regex(value, "regex", param)
    return regex_grammar(value)


def _of_choice(value: Any, whitespace: Whitespace, param: str) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise RequestError(f"{param}: choice must be a list of texts, none of them empty", param=param)
    check_limit("choices", len(value), param=param)
    check_limit("grammar", sum(map(len, value)), param=param)
    return choice_grammar(value)


def _of_grammar(value: Any, whitespace: Whitespace, param: str) -> str:
    if not isinstance(value, str) or not value.strip() or value.lstrip().startswith("{"):
        raise RequestError(f"{param}: grammar must be a text in Lark or GBNF", param=param)
    check_limit("grammar", len(value), param=param)
    return value


GRAMMARS: Mapping[str, Callable[[Any, Whitespace, str], str]] = {
    "json": _of_json,
    "regex": _of_regex,
    "choice": _of_choice,
    "grammar": _of_grammar,
    "json_object": _of_json_object,
}
