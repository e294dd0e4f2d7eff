"""A list of calls behind [TOOL_CALLS], or a name with its arguments."""

import pytest

from legato.tokenization.tool_calls.mistral import MISTRAL, NEWER_MISTRAL, MistralReader
from tests.tokenization.tool_calls.reading import Read, read_whole

F, WEATHER = ("f", '{"a": 1}'), ("get_weather", "{}")


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", [F]),
        (
            '[TOOL_CALLS][{"arguments":{"a": 1},"name":"f","id":"abc"} , {"name":"get_weather"}]\n',
            "",
            [F, WEATHER],
        ),
        ('I look. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}] Done.', "I look. Done.", [F]),
        ('[TOOL_CALLS]f{"a": 1}', "", [F]),
        ('[TOOL_CALLS] f {"a": 1}[TOOL_CALLS]get_weather[ARGS]{}', "", [F, WEATHER]),
        ('[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": 1} Done.', "Done.", [F]),
    ],
)
def test_calls_are_parted_from_what_is_said(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert read_whole(MistralReader, answer) == Read(text, calls, has_calls=True)


@pytest.mark.parametrize(
    "answer",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [1]",
        "[TOOL_CALLS]unknown{}",
        "[TOOL_CALLS]f(1)",
        "[TOOL_CALLS]f[OTHER]{}",
        "a list: [1, 2] [TOOL",
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(answer: str) -> None:
    assert read_whole(MistralReader, answer) == Read(answer, [], has_calls=False)


def test_calls_are_written_as_they_are_read() -> None:
    older, newer = MISTRAL.calls_text([F, WEATHER]), NEWER_MISTRAL.calls_text([F, WEATHER])
    assert (
        older
        == '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}}]'
    )
    assert newer == '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather[ARGS]{}'
    assert read_whole(MistralReader, older).calls == read_whole(MistralReader, newer).calls == [F, WEATHER]


def test_ids_have_the_nine_characters_that_the_templates_ask_for() -> None:
    first, second = MISTRAL.make_id(), MISTRAL.make_id()
    assert first != second
    assert all(len(each) == 9 and each.isalnum() for each in (first, second))
