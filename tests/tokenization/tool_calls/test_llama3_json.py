"""Calls that are the whole answer, or stand behind a tag."""

import pytest

from legato.tokenization.tool_calls.llama3_json import LLAMA3_JSON, Llama3JsonReader
from tests.tokenization.tool_calls.reading import Read, read_whole

CALL = '{"name": "f", "parameters": {"a": {"b": 1}}}'
F = ("f", '{"a": {"b": 1}}')


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (CALL, "", [F]),
        (f"\n{CALL}\n", "", [F]),
        (f"<|python_tag|>{CALL}", "", [F]),
        (f" <|python_tag|> {CALL}; {CALL};{CALL}", "", [F, F, F]),
        (f"I look. <|python_tag|>{CALL}", "I look.", [F]),
        ('{"type": "function", "name": "f", "arguments": {}}', "", [("f", "{}")]),
        (f"{CALL} Done.", "Done.", [F]),
        (f"{CALL}; then", "; then", [F]),
    ],
)
def test_calls_are_parted_from_what_is_said(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert read_whole(Llama3JsonReader, answer) == Read(text, calls, has_calls=True)


@pytest.mark.parametrize(
    "answer",
    [
        f"Look: {CALL}",
        '{"name": "Ann", "parameters": {}}',
        '  {"answer": 42}',
        "\n\n{ is a bracket",
        "<|python_tag|>print(1)",
        "<|python_",
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(answer: str) -> None:
    assert read_whole(Llama3JsonReader, answer) == Read(answer, [], has_calls=False)


def test_calls_are_written_as_they_are_read() -> None:
    text = LLAMA3_JSON.calls_text([("f", '{"a": 1}'), ("get_weather", "{}")])
    assert text == '{"name": "f", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}'
    assert read_whole(Llama3JsonReader, text).calls == [("f", '{"a": 1}'), ("get_weather", "{}")]
