"""What holds for every format: no cut matters, nothing is lost, arguments come as they are written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.tokenization.tool_calls.call_reader import CallReader, Text
from legato.tokenization.tool_calls.hermes import HermesReader
from legato.tokenization.tool_calls.llama3_json import Llama3JsonReader
from legato.tokenization.tool_calls.mistral import MistralReader
from tests.tokenization.tool_calls.reading import NAMES, read

READERS = (HermesReader, Llama3JsonReader, MistralReader)
every_reader = pytest.mark.parametrize("kind", READERS)

# Calls, and what they are made of, in any order: garbage that comes near.
PARTS = (
    '<tool_call>\n{"name": "f", "arguments": {"a": "\\"é"}}\n</tool_call>',
    '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "get_weather", "arguments": {"b": [1, -2.5e3]}}]',
    '{"name": "f", "parameters": {"x": null}}',
    "[TOOL_CALLS]f[ARGS]{}",
    "[CALL_ID]", "[ARGS]", "<tool_call>", "</tool_call>", "[TOOL_CALLS]",
    "<|python_tag|>", ";", ", ", "[", "]",
    "{", "}", '"name"', '"arguments"', ": ", '"f"', "true", "0", "\\", '"', " ", "\n", "Hello", "é", "\u3000",
)  # fmt: skip
answers = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join)


@st.composite
def cut_answers(draw: st.DrawFn) -> tuple[str, list[int]]:
    answer = draw(answers)
    return answer, draw(st.lists(st.integers(0, len(answer)), max_size=8))


@every_reader
@given(cut_answers())
@settings(max_examples=150, deadline=None)
def test_no_cut_changes_what_is_read_and_nothing_is_lost(
    kind: type[CallReader], cut_answer: tuple[str, list[int]]
) -> None:
    answer, cuts = cut_answer
    whole = read(kind, answer)

    assert read(kind, answer, cuts) == whole
    if not whole.calls:
        assert whole.text == answer
    assert {name for name, _ in whole.calls} <= set(NAMES)
    if whole.has_calls:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole.calls)


@every_reader
@given(st.lists(st.sampled_from(["Hi", "a { b", "[x]", "é <tool>"]) | st.none(), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_text_between_calls_comes_out_in_order(kind: type[CallReader], parts: list[str | None]) -> None:
    marked = {
        HermesReader: '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        Llama3JsonReader: '<|python_tag|>{"name": "f", "parameters": {}}',
        MistralReader: "[TOOL_CALLS]f{}",
    }[kind]
    answer = " ".join(marked if part is None else part for part in parts)

    found = read(kind, answer)

    assert found.text.split() == " ".join(part for part in parts if part).split()
    assert len(found.calls) == parts.count(None)


@every_reader
def test_arguments_come_as_the_model_writes_them(kind: type[CallReader]) -> None:
    opening = {
        HermesReader: '<tool_call>\n{"name": "f", "arguments": ',
        Llama3JsonReader: '{"name": "f", "parameters": ',
        MistralReader: "[TOOL_CALLS]f",
    }[kind]
    reader = kind(NAMES, lambda: "id")

    assert [reader.push(part).tool_calls for part in (opening[:5], opening[5:])] == [(), ()]
    [begun] = reader.push('{"ci').tool_calls
    [more] = reader.push('ty": "Par').tool_calls
    assert begun == (0, '{"ci', "id", "f")
    assert more == (0, 'ty": "Par', None, None)
    assert not reader.has_calls
    [last] = reader.push('is"}').tool_calls
    assert last == (0, 'is"}', None, None)
    assert reader.has_calls


def test_text_that_can_begin_no_call_is_given_at_once() -> None:
    reader = HermesReader(NAMES, str)
    assert [reader.push(part).text for part in ("Hello", " world", " <", "b", " <tool", "s>", "\n", ".")] == [
        "Hello", " world", "", " <b", "", " <tools>", "", "\n.",
    ]  # fmt: skip


@every_reader
@pytest.mark.parametrize(
    "unit", [" ", "<", "<tool_call>", '<tool_call>{"', "[TOOL_CALLS] ", '{"a":[', "[[", ";{"]
)
def test_each_character_is_read_a_few_times_at_most(kind: type[CallReader], unit: str) -> None:
    num_read = 0

    class Counting(kind):  # type: ignore[valid-type, misc]
        def _next(self) -> Text:
            nonlocal num_read
            num_read += 1
            return super()._next()

    reader = Counting(NAMES, str)
    reader.push(unit * 1000)
    assert num_read <= 4 * len(unit) * 1000
