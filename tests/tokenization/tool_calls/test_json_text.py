"""JSON is followed character by character exactly as far as it is JSON."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.tokenization.tool_calls.json_text import ContainerText, MalformedError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def end_of(text: str) -> int | None:
    """Where the container that begins the text ends; None = it does not."""
    container = ContainerText()
    return next((end for end, char in enumerate(text, start=1) if container.feed(char)), None)


@given(st.lists(values, max_size=3), st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_container_ends_where_its_json_does(value: list[Any], indent: int | None, ensure_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    assert end_of(text) == len(text)
    assert end_of(text + "] x") == len(text)
    assert end_of(text[:-1]) is None


@pytest.mark.parametrize(
    "text",
    [
        "[,", "[1,]", "[1 2", "[01]", "[1.]", "[.5]", "[+1]", "[1e]", "[nul]", "[truefalse]", "[N", "[I",
        "[--1]", "[}", "{]", "{a", "{1",
        '{"a"}', '{"a" 1', '{"a":}', '{"a":1,}', '{"a":1 "', '["\n', '["\\x', '["\\u12g',
        "['", '{"a":1]', '[1}', '{,',
    ],
)  # fmt: skip
def test_first_character_that_does_not_fit_is_refused(text: str) -> None:
    assert end_of(text[:-1]) is None
    with pytest.raises(MalformedError):
        end_of(text)


def test_depth_costs_no_recursion() -> None:
    assert end_of("[" * 100_000 + "]" * 100_000) == 200_000
