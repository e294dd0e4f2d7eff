"""Lines of a batch's input, read as they are needed; a line that is at fault is told, and spoils no other."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from legato.api.limits import LIMITS
from legato.api.transport.json_body import parse_strictly
from legato.core.errors import RequestError

URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
)  # routes that generate, in OpenAI's shapes
FIELDS = frozenset({"custom_id", "method", "url", "body"})
MAX_LINE_BYTES = LIMITS["body"].maximum + 2**16  # a body, and what stands around it


@dataclass(frozen=True, slots=True)
class Line:
    """A request to be sent: `body` is JSON for the route at `url`; `ignored` are fields that nobody knows."""

    number: int
    num_bytes: int
    custom_id: str
    url: str
    body: bytes
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be sent; its custom_id where it has one."""

    number: int
    num_bytes: int
    custom_id: str | None
    error: RequestError


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A line whose row the output holds already."""

    num_bytes: int
    is_failure: bool


@dataclass(slots=True)
class Answered:
    """What an output holds already.

    failures  custom_id -> whether its response is a failure
    refused   numbers of the lines that were at fault
    """

    failures: dict[str, bool] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


def read_lines(stream: BinaryIO, answered: Answered) -> Iterator[Line | BadLine | KnownLine]:
    """Each line that is not blank. A line that was at fault and is no longer counts as a new one."""
    first_lines: dict[str, int] = {}  # custom_id -> where it came first
    for number, (text, num_bytes) in enumerate(_texts(stream), 1):
        if not text.strip() and len(text) == num_bytes:
            continue
        line = _parse(number, text, num_bytes)
        if line.custom_id is not None:
            first = first_lines.setdefault(line.custom_id, number)
            if first != number:
                message = f"custom_id is that of line {first} too"
                error = RequestError(message, param="custom_id", code="duplicate_custom_id")
                line = BadLine(number, num_bytes, line.custom_id, error)
        if isinstance(line, BadLine) and number in answered.refused:
            yield KnownLine(num_bytes, is_failure=True)
        elif isinstance(line, Line) and line.custom_id in answered.failures:
            yield KnownLine(num_bytes, answered.failures[line.custom_id])
        else:
            yield line


def _texts(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Each line, cut after MAX_LINE_BYTES, and how many bytes it has."""
    while text := stream.readline(MAX_LINE_BYTES + 1):
        num_bytes, piece = len(text), text
        while not piece.endswith(b"\n") and (piece := stream.readline(MAX_LINE_BYTES)):
            num_bytes += len(piece)
        yield text, num_bytes


def _parse(number: int, text: bytes, num_bytes: int) -> Line | BadLine:
    custom_id = None
    try:
        if num_bytes > MAX_LINE_BYTES:
            message = f"the line has {num_bytes} bytes; at most {MAX_LINE_BYTES} are read"
            raise RequestError(message, code="line_too_long")
        value = _object(text)
        custom_id = _custom_id(value)
        url, body = _url(value), _body(value)
    except RequestError as error:
        return BadLine(number, num_bytes, custom_id, error)
    ignored = tuple(sorted(value.keys() - FIELDS))
    return Line(number, num_bytes, custom_id, url, body, ignored)


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = parse_strictly(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"the line is not valid JSON: {error.msg}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("the line must be a JSON object", code="invalid_line")
    return value


def _custom_id(value: dict[str, Any]) -> str:
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise RequestError("custom_id must be a text that names the line", param="custom_id")
    return custom_id


def _url(value: dict[str, Any]) -> str:
    if value.get("method") != "POST":
        raise RequestError('method must be "POST"', param="method")
    url = value.get("url")
    if not isinstance(url, str) or url not in URLS:
        raise RequestError(f"url must be one of {', '.join(URLS)}", param="url", code="invalid_url")
    return url


def _body(value: dict[str, Any]) -> bytes:
    body = value.get("body")
    if not isinstance(body, dict):
        raise RequestError("body must be a JSON object", param="body")
    if body.get("stream"):
        message = "body.stream must be false or absent: a batch has whole answers"
        raise RequestError(message, param="body.stream", code="unsupported")
    return json.dumps(body, ensure_ascii=False).encode()
