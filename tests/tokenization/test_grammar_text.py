"""The grammars of schemas, patterns and choices: which texts they accept."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from legato.tokenization.grammar_text import (
    SPARE,
    Whitespace,
    choice_grammar,
    json_schema_grammar,
    lark_json,
    lark_text,
    lark_token,
    regex_grammar,
)

BYTES = LLTokenizer("byte")
PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array"}},
    "required": ["a", "b"],
}


def accepts(grammar: str, text: str | bytes) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = text.encode() if isinstance(text, str) else text
    return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("whitespace", "accepted", "refused"),
    [
        (
            SPARE,
            ['{"a":1,"b":[]}', '{"a": 1, "b": []}', '{"a":1, "b": [1,2, 3]}'],
            ['{ "a":1,"b":[]}', '{"a":  1,"b":[]}', '{"a":1,\n"b":[]}'],
        ),
        (Whitespace(is_compact=True), ['{"a":1,"b":[1,2]}'], ['{"a": 1,"b":[]}', '{"a":1, "b":[]}']),
        (Whitespace(pattern=r"\n"), ['{\n"a"\n:\n1,"b":[]}'], ['{ "a":1,"b":[]}', '{\n\n"a":1,"b":[]}']),
    ],
)  # fmt: skip
def test_whitespace_of_json_is_chosen(
    whitespace: Whitespace, accepted: list[str], refused: list[str]
) -> None:
    grammar = json_schema_grammar(PAIR, whitespace)
    assert all(accepts(grammar, text) for text in accepted)
    assert not any(accepts(grammar, text) for text in [*refused, accepted[0] + " ", " " + accepted[0]])


def test_options_of_a_schema_do_not_win_over_ours() -> None:
    schema = {"type": "null", "x-guidance": {"lenient": True, "whitespace_flexible": True}, "not": {}}
    assert "Unimplemented keys" in LLMatcher.validate_grammar(json_schema_grammar(schema))


@pytest.mark.parametrize("value", [None, 1.5, "한", [1, {"a": []}], {"k": True}])
def test_true_is_any_json(value: Any) -> None:
    assert accepts(json_schema_grammar(True), json.dumps(value, ensure_ascii=False))


def test_properties_come_in_the_order_of_the_schema() -> None:
    assert not accepts(json_schema_grammar(PAIR), '{"b":[],"a":1}')


def test_a_pattern_matches_from_end_to_end() -> None:
    grammar = regex_grammar(r"[a-c]+/\d{2}")
    assert accepts(grammar, "abc/12")
    assert not any(accepts(grammar, text) for text in ("xabc/12", "abc/123", "abc/1"))


@pytest.mark.parametrize("text", ['"', "\\", "\n\t\x00\x1f\x7f", "한🧑‍🚀", "a/b", "%json {}", "#", "\u2028"])
def test_choices_and_texts_are_taken_to_the_letter(text: str) -> None:
    assert accepts(choice_grammar(["other", text]), text)
    assert not accepts(choice_grammar(["other", text]), text + text)
    assert accepts(f"start: {lark_text(text)} {lark_text('!')}", text + "!")


def test_json_may_stand_between_texts_and_tokens() -> None:
    grammar = f"start: call+\ncall: {lark_text('<tool>')} {lark_json(PAIR)} {lark_text('</tool>')}"
    assert accepts(grammar, '<tool>{"a":1,"b":[]}</tool><tool>{"a": 2, "b":[]}</tool>')
    assert not accepts(grammar, '<tool>{"a":1}</tool>')
    assert accepts(f"start: {lark_token(65)} {lark_text('b')}", "Ab")
