"""Lines of a batch's input: what is sent, what is refused and why, what is known already."""

import io
import json
from typing import Any

import pytest

from legato.cli.batch.lines import MAX_LINE_BYTES, Answered, BadLine, KnownLine, Line, read_lines

GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "안녕"},
}


def read(
    *lines: dict[str, Any] | bytes, answered: Answered | None = None
) -> list[Line | BadLine | KnownLine]:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return list(read_lines(io.BytesIO(b"\n".join(texts)), answered or Answered()))


def test_good_line_is_a_request_with_its_number_and_size() -> None:
    text = json.dumps(GOOD).encode()
    [line] = read(b"", text)
    assert line == Line(2, len(text), "a", "/v1/completions", '{"prompt": "안녕"}'.encode())


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_do_no_harm() -> None:
    text = b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r"
    [line] = read(text, b"", b"  \r", b"")
    assert isinstance(line, Line)


@pytest.mark.parametrize(
    ("line", "code", "param", "message"),
    [
        (b"{", "invalid_json", None, "not valid JSON"),
        (b'{"custom_id": NaN}', "invalid_json", None, "NaN is not a JSON number"),
        (b"\xff", "invalid_json", None, "not Unicode"),
        (b"[1]", "invalid_line", None, "must be a JSON object"),
        ({**GOOD, "custom_id": None}, "invalid_value", "custom_id", "custom_id must be a text"),
        ({**GOOD, "custom_id": 7}, "invalid_value", "custom_id", "custom_id must be a text"),
        ({**GOOD, "custom_id": ""}, "invalid_value", "custom_id", "custom_id must be a text"),
        ({**GOOD, "method": "GET"}, "invalid_value", "method", 'must be "POST"'),
        ({**GOOD, "url": "/v1/embeddings"}, "invalid_url", "url", "/v1/chat/completions, /v1/completions"),
        ({**GOOD, "url": ["/v1/completions"]}, "invalid_url", "url", "one of"),
        ({**GOOD, "body": "x"}, "invalid_value", "body", "must be a JSON object"),
        ({**GOOD, "body": {"stream": True}}, "unsupported", "body.stream", "whole answers"),
        (b" " * (MAX_LINE_BYTES + 1) + b"x", "line_too_long", None, f"at most {MAX_LINE_BYTES}"),
    ],
)
def test_line_at_fault_spoils_only_itself(
    line: dict[str, Any] | bytes, code: str, param: str | None, message: str
) -> None:
    first, bad, last = read({**GOOD, "custom_id": "first"}, line, {**GOOD, "custom_id": "last"})
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.error.code, bad.error.param) == (2, code, param)
    assert message in str(bad.error)
    assert [getattr(good, "custom_id", None) for good in (first, last)] == ["first", "last"]


def test_second_line_with_a_custom_id_is_refused_also_when_the_first_was_at_fault() -> None:
    lines = read({**GOOD, "url": "/"}, GOOD, {**GOOD, "custom_id": "b"}, {**GOOD, "custom_id": "b"})
    codes = [line.error.code if isinstance(line, BadLine) else None for line in lines]
    assert codes == ["invalid_url", "duplicate_custom_id", None, "duplicate_custom_id"]
    assert "line 3 too" in str(getattr(lines[3], "error", ""))


def test_fields_that_nobody_knows_are_kept_to_be_told() -> None:
    [line] = read({**GOOD, "Body": {}, "priority": 1})
    assert isinstance(line, Line)
    assert line.ignored == ("Body", "priority")


def test_answered_lines_are_known_and_so_is_what_became_of_them() -> None:
    answered = Answered(failures={"a": False, "b": True})
    kinds = read(GOOD, {**GOOD, "custom_id": "b"}, {**GOOD, "custom_id": "c"}, answered=answered)
    assert [getattr(kind, "is_failure", None) for kind in kinds] == [False, True, None]


def test_line_that_was_refused_is_known_while_it_is_at_fault_and_new_when_it_is_mended() -> None:
    answered = Answered(refused={1})
    assert isinstance(read(b"{", answered=answered)[0], KnownLine)
    assert isinstance(read(GOOD, answered=answered)[0], Line)
    assert isinstance(read(GOOD, b"{", answered=answered)[1], BadLine)


def test_duplicate_of_an_answered_line_is_still_refused() -> None:
    first, second = read(GOOD, GOOD, answered=Answered(failures={"a": False}))
    assert isinstance(first, KnownLine)
    assert isinstance(second, BadLine)
