"""The output of a batch: whole rows, found again; a torn one cut off; nothing else touched."""

import json
from pathlib import Path

import pytest

from legato.cli.batch.lines import BadLine, Line
from legato.cli.batch.output import open_output
from legato.cli.batch.rows import ROW_START, Row, answer_row, decode_row, encode_row, fault_row
from legato.core.errors import ConfigError, RequestError

LINE = Line(3, 40, "a", "/v1/completions", b"{}")


def good_row(body: bytes = b'{"usage":{"completion_tokens":5}}') -> Row:
    return answer_row(LINE, 200, "req", body)


def bad_row() -> Row:
    error = RequestError("url must be one of …", param="url", code="invalid_url")
    return fault_row(BadLine(7, 20, None, error))


def test_answer_has_openais_shape_and_the_routes_own_bytes() -> None:
    row = json.loads(encode_row(good_row(b'{"x": 1.50}')))
    assert row.pop("id").startswith("batch_req_")
    response = {"status_code": 200, "request_id": "req", "body": {"x": 1.5}}
    assert row == {"custom_id": "a", "response": response, "error": None}
    assert b'{"x": 1.50}' in encode_row(good_row(b'{"x": 1.50}'))


def test_fault_has_no_response_and_names_its_line() -> None:
    row = json.loads(encode_row(bad_row()))
    assert (row["custom_id"], row["response"]) == (None, None)
    assert row["error"] == {
        "code": "invalid_url",
        "message": "url must be one of …",
        "param": "url",
        "line": 7,
    }


def test_row_is_one_line_for_every_reader_and_keeps_its_characters() -> None:
    text = "a\u2028b\u2029c\x85d"
    row = encode_row(good_row(json.dumps({"text": text}, ensure_ascii=False).encode()))
    assert len(row.decode().splitlines()) == 1
    assert json.loads(row)["response"]["body"]["text"] == text
    assert row.startswith(ROW_START)


def test_tokens_and_complaints_are_read_from_the_answer() -> None:
    refusal = answer_row(LINE, 400, "req", b'{"error":{"message":"no prompt","code":"x"}}')
    assert (good_row().num_tokens, good_row().is_failure) == (5, False)
    assert good_row(b'{"usage":{"input_tokens":1,"output_tokens":2}}').num_tokens == 2
    assert (refusal.num_tokens, refusal.is_failure, refusal.complaint) == (0, True, "400, no prompt")
    assert (bad_row().is_failure, bad_row().complaint) == (True, "url must be one of …")


def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_output(path) as output:
        assert output.answered.failures == {}
        output.write(good_row())
        output.write(bad_row())
        assert len(path.read_bytes().splitlines()) == 2  # at once, not when the file is closed
    with open_output(path) as output:
        assert (output.answered.failures, output.answered.refused) == ({"a": False}, {7})


def test_torn_row_is_cut_off_wherever_it_ends(tmp_path: Path) -> None:
    path, whole, torn = tmp_path / "out.jsonl", encode_row(bad_row()), encode_row(good_row())
    for length in range(len(torn)):
        path.write_bytes(whole + torn[:length])
        with open_output(path) as output:
            assert output.answered.failures == {}
            output.write(good_row())
        assert [decode_row(row).custom_id for row in path.read_bytes().splitlines()] == [None, "a"]


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"id": 5}\n', b"\x00" * 40])
def test_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="line 1 is no row"), open_output(path):
        pass
    assert path.read_bytes() == content


def test_two_batches_cannot_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_output(path), pytest.raises(ConfigError, match="another legato batch"), open_output(path):
        pass
    with open_output(path):
        pass


def test_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"), open_output(tmp_path / "none" / "out.jsonl"):
        pass
