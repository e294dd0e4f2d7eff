"""Lines of the log, as text and as JSON; a process hands its format on to the one it starts."""

import json
import logging
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from legato.observability.logs import JsonLines, TextLines, log_format_in_use


def logged(message: str, *arguments: object, **options: Any) -> dict[str, Any]:
    """One line of the engine's, read back."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.setFormatter(JsonLines("engine"))
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning(message, *arguments, **options)
    [line] = lines
    assert "\n" not in line
    assert line.isascii(), "whatever the encoding of standard error is"
    fields: dict[str, Any] = json.loads(line)
    return fields


def test_line_has_time_level_process_and_message() -> None:
    line = logged('two\nlines, "%s" and %d: 한국어 \ud800', "quotes", 7)
    assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
    message = 'two\nlines, "quotes" and 7: 한국어 \ud800'
    assert line == {"level": "warning", "process": "engine", "message": message}


def test_line_about_a_request_has_its_id_and_one_about_a_failure_its_trace() -> None:
    assert logged("refused", extra={"request_id": "abc"})["request_id"] == "abc"
    try:
        raise ValueError("no such thing")
    except ValueError:
        line = logged("failed", exc_info=True)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: no such thing")


@pytest.mark.parametrize(
    ("log_format", "pattern"), [("text", "WARNING engine: hello\n"), ("json", '"message": "hello"}\n')]
)
def test_process_logs_to_standard_error_and_knows_how(log_format: str, pattern: str) -> None:
    script = (
        "import logging; from legato.observability.logs import *;"
        f" set_up_logging('warning', 'engine', '{log_format}');"
        " logging.warning('hello'); logging.info('unseen'); print(log_format_in_use())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr.endswith(pattern)
    assert result.stderr.count("\n") == 1
    assert result.stdout == f"{log_format}\n"


def test_text_holds_no_line_and_no_escape_that_was_not_meant() -> None:
    formatter = TextLines("%(levelname)s engine: %(message)s")
    record = logging.LogRecord(
        "test", logging.ERROR, "", 0, "no model %s", ("a\nERROR engine: b\x1b[31m",), None
    )
    assert formatter.format(record) == "ERROR engine: no model a\n    ERROR engine: b\\x1b[31m"
    try:
        raise ValueError("a\nERROR engine: b\r\x1b[31m")
    except ValueError:
        record.exc_info = sys.exc_info()
    lines = formatter.format(record).splitlines()
    assert all(line.startswith("    ") for line in lines[1:])
    assert all(map(str.isprintable, lines))


def test_process_that_was_not_set_up_logs_text() -> None:
    assert log_format_in_use() == "text"
