"""The fields that constrain an answer: the grammar that each becomes, and what is refused."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.core.errors import GrammarFailedError, RequestError
from legato.tokenization.grammar_text import (
    Whitespace,
    choice_grammar,
    json_schema_grammar,
    regex_grammar,
)
from tests.api.openai_calls import USER, refused
from tests.fakes import FakeGenerator

PATHS = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": [USER]}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
WRAPPED = {"name": "answer", "schema": SCHEMA, "strict": True}


def grammar_of(client: TestClient, generator: FakeGenerator, path: str, **fields: Any) -> str | None:
    response = client.post(path, json={**PATHS[path], "max_tokens": 1, **fields})
    assert response.status_code == 200, response.text
    assert "x-legato-ignored" not in response.headers
    grammar: str | None = generator.submissions[-1]["params"].grammar
    return grammar


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, json_schema_grammar({"type": "object"})),
        ({"response_format": {"type": "json_schema", "json_schema": WRAPPED}}, json_schema_grammar(SCHEMA)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}}},
            json_schema_grammar(SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA, "disable_fallback": True}}, json_schema_grammar(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, json_schema_grammar(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, json_schema_grammar({"type": "object"})),
        ({"structured_outputs": {"regex": "[ab]+", "json_object": False}}, regex_grammar("[ab]+")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, choice_grammar(["yes", "no"])),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, 'start: "a"'),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            json_schema_grammar(SCHEMA, Whitespace(is_compact=True)),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "\\n"}},
            json_schema_grammar(SCHEMA, Whitespace("\\n")),
        ),
        ({"guided_json": SCHEMA}, json_schema_grammar(SCHEMA)),
        (
            {"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": " "},
            json_schema_grammar(SCHEMA, Whitespace(" ")),
        ),
        ({"guided_regex": "a|b"}, regex_grammar("a|b")),
        ({"guided_choice": ["a"]}, choice_grammar(["a"])),
        ({"guided_grammar": "start: /a/"}, "start: /a/"),
        ({"guided_choice": ["a"], "response_format": {"type": "text"}}, choice_grammar(["a"])),
    ],
)
def test_each_field_becomes_a_grammar(
    client: TestClient, generator: FakeGenerator, path: str, fields: dict[str, Any], grammar: str | None
) -> None:
    assert grammar_of(client, generator, path, **fields) == grammar


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"response_format": "json"}, "response_format", "dictionary"),
        ({"response_format": {}}, "response_format", "json_object"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", '"schema": {...}'),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format",
            '"schema": {...}',
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            "response_format",
            '"schema": {...}',
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**WRAPPED, "x": 1}}},
            "response_format",
            "'x'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**WRAPPED, "strict": "yes"}}},
            "response_format",
            "strict",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**WRAPPED, "schema": [1]}}},
            "response_format",
            "object",
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "response_format",
            '"schema": {...}',
        ),
        ({"response_format": {"type": "text", "json_schema": WRAPPED}}, "response_format", "json_schema"),
        ({"structured_outputs": {}}, "structured_outputs", "json, regex, choice, grammar"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs", "json_object"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "not valid JSON"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs", "object"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"regex": "a\\"}}, "structured_outputs", "backslash"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs", "empty"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs", "list"),
        ({"structured_outputs": {"grammar": '{"grammars": []}'}}, "structured_outputs", "Lark or GBNF"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs",
            "JSON alone",
        ),
        (
            {
                "structured_outputs": {
                    "json": SCHEMA,
                    "whitespace_pattern": " ",
                    "disable_any_whitespace": True,
                }
            },
            "structured_outputs",
            "contradicts",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": 1}},
            "structured_outputs",
            "true or false",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
            "structured_outputs",
            "additionalProperties",
        ),
        ({"guided_json": [1]}, "guided_json", "object"),
        ({"guided_choice": [1]}, "guided_choice", "texts"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "both"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "both",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_right_shape(
    client: TestClient, generator: FakeGenerator, fields: dict[str, Any], param: str, hint: str
) -> None:
    for path, body in PATHS.items():
        error = refused(client, path, {**body, **fields})
        assert error["param"] == param
        assert hint in error["message"]
    assert generator.submissions == []


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "("}},
        {"guided_grammar": "start: x"},
    ],
)
def test_a_grammar_that_cannot_be_built_names_the_field_it_came_from(
    client: TestClient, generator: FakeGenerator, field: dict[str, Any]
) -> None:
    generator.refusal = RequestError("no such rule", param="grammar", code="invalid_grammar")
    for path, body in PATHS.items():
        generator.refusal = RequestError("no such rule", param="grammar", code="invalid_grammar")
        error = refused(client, path, {**body, **field})
        assert (error["param"], error["code"]) == (next(iter(field)), "invalid_grammar")
        assert error["message"] == f"{error['param']}: no such rule"


def test_an_answer_that_cannot_be_held_to_its_grammar_is_an_error(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.failure = GrammarFailedError("the grammar allows no token")
    body = {"prompt": "abc", "guided_regex": "a+"}
    plain = client.post("/v1/completions", json=body)
    assert plain.status_code == 500
    assert plain.json()["error"]["code"] == "grammar_failed"
    streamed = client.post("/v1/completions", json={**body, "stream": True})
    assert '"code":"grammar_failed"' in streamed.text.replace(": ", ":")
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_routes_of_the_lesson_take_them_too(client: TestClient, generator: FakeGenerator) -> None:
    assert client.post("/basic_generate", json={"prompt": "a", "guided_regex": "b"}).status_code == 200
    assert generator.submissions[-1]["params"].grammar == regex_grammar("b")
