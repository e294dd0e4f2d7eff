"""Damaged batch files: each line is a request or a fault of its own, and the others stay what they were."""

import io
import json
from typing import Any

from hypothesis import strategies as st

from legato.cli.batch.lines import Answered, BadLine, Line, read_lines
from tests.fuzz.examples import counts, damaged, mutated, run_examples

GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "안녕", "max_tokens": 4, "stop": ["x"]},
}
LAST = json.dumps(GOOD | {"custom_id": "the last one"}).encode()


def check(text: bytes) -> None:
    stream = io.BytesIO(text.replace(b"\n", b" ") + b"\n" + LAST + b"\n")
    *lines, last = read_lines(stream, Answered())
    assert len(lines) <= 1
    for line in lines:
        assert isinstance(line, Line | BadLine)
        if isinstance(line, BadLine):
            assert len(str(line.error)) < 500
        else:
            assert isinstance(json.loads(line.body), dict)
    assert isinstance(last, Line)


@counts(60, 20_000)
def test_lines_of_odd_values_and_damaged_ones(num_examples: int) -> None:
    whole = json.dumps(GOOD, ensure_ascii=False).encode()
    odd = mutated(GOOD, also=("zeta",)).map(lambda value: json.dumps(value).encode())
    run_examples(num_examples, check, st.one_of(damaged(whole, len(whole)), odd))
