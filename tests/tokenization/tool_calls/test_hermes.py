"""Calls between <tool_call> and </tool_call>."""

import pytest

from legato.tokenization.tool_calls.hermes import HERMES, HermesReader
from tests.tokenization.tool_calls.reading import Read, read_whole

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}\n</tool_call>'
F = ("f", '{"a": [1, {"b": "}"}]}')


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (CALL, "", [F]),
        (f"\n{CALL}\n", "", [F]),
        (f"{CALL}\n{CALL}", "", [F, F]),
        (f"{CALL}{CALL}", "", [F, F]),
        (f"I look.\n\n{CALL}", "I look.", [F]),
        (f"I look.\n{CALL}\n{CALL} Done. ", "I look.\nDone. ", [F, F]),
        (f"{CALL} Done.", "Done.", [F]),
        (f"I look.{CALL} Done.", "I look. Done.", [F]),
        (
            '<tool_call>{"arguments": {"x": "\\u00e9"}, "name": "f"}</tool_call>',
            "",
            [("f", '{"x": "\\u00e9"}')],
        ),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (
            '<tool_call>{"id": [1, null], "name": "f", "arguments": {}, "n": -1.5e3}</tool_call>',
            "",
            [("f", "{}")],
        ),
    ],
)
def test_calls_are_parted_from_what_is_said(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert read_whole(HermesReader, answer) == Read(text, calls, has_calls=True)


@pytest.mark.parametrize("missing", ["}\n</tool_call>", "\n</tool_call>", "</tool_call>", "_call>", ">"])
def test_end_that_a_model_forgets_harms_nothing(missing: str) -> None:
    assert read_whole(HermesReader, CALL.removesuffix(missing)) == Read("", [F], has_calls=True)
    assert read_whole(HermesReader, CALL.replace("}\n</", "\n</") + CALL) == Read("", [F, F], has_calls=True)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " Hello\n",
        "a < b <tool> <tool_calls> <tool_call",
        "<tool_call>",
        "<tool_call> f(1) </tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f" "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 01}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "argume',
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(answer: str) -> None:
    assert read_whole(HermesReader, answer) == Read(answer, [], has_calls=False)


def test_call_after_one_that_was_none_is_read() -> None:
    assert read_whole(HermesReader, f"<tool_call>{CALL}") == Read("<tool_call>", [F], has_calls=True)
    assert read_whole(HermesReader, f"<tool_<tool_call>{{{CALL}") == Read(
        "<tool_<tool_call>{", [F], has_calls=True
    )


def test_call_that_breaks_off_is_cut_and_so_the_answer_has_no_whole_calls() -> None:
    assert read_whole(HermesReader, '<tool_call>{"name": "f", "arguments": {"a": 1') == Read(
        "", [("f", '{"a": 1')], has_calls=False
    )
    assert read_whole(HermesReader, CALL + '<tool_call>{"name": "f", "arguments": {"a": oops}}') == Read(
        "oops}}", [F, ("f", '{"a": ')], has_calls=False
    )


def test_calls_are_written_as_they_are_read() -> None:
    text = HERMES.calls_text([("f", '{"a": 1}'), ("get_weather", "{}")])
    assert text.startswith('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n')
    assert read_whole(HermesReader, text).calls == [("f", '{"a": 1}'), ("get_weather", "{}")]
