"""Rows of a batch's output, in OpenAI's shape: one for each line of the input."""

import secrets

import msgspec

from legato.api.json_text import encode_line
from legato.cli.batch.lines import BadLine, Line

ROW_START = b'{"id":"batch_req_'  # of every row


class Response(msgspec.Struct, frozen=True):
    """What the route answered, a refusal too; `body` is the JSON of its answer, byte for byte."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFault(msgspec.Struct, frozen=True):
    """Why a line was never sent to a route; `line` counts from 1."""

    code: str
    message: str
    param: str | None
    line: int


class Row(msgspec.Struct, frozen=True):
    """Either a response or a fault."""

    id: str
    custom_id: str | None
    response: Response | None
    error: LineFault | None

    @property
    def is_failure(self) -> bool:
        return self.response is None or self.response.status_code >= 400

    @property
    def num_tokens(self) -> int:
        """Generated tokens, by the usage that the answer tells."""
        if self.response is None or self.is_failure:
            return 0
        usage = msgspec.json.decode(self.response.body, type=_Answer).usage
        return usage.completion_tokens or usage.output_tokens

    @property
    def complaint(self) -> str:
        """What a failure says for its reason."""
        if self.response is None:
            return "" if self.error is None else self.error.message
        error = msgspec.json.decode(self.response.body, type=_Refusal).error
        return f"{self.response.status_code}, {error.message}"


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    output_tokens: int = 0  # its name on /v1/responses


class _Answer(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def answer_row(line: Line, status_code: int, request_id: str, body: bytes) -> Row:
    response = Response(status_code, request_id, msgspec.Raw(body))
    return Row(_new_id(), line.custom_id, response, None)


def fault_row(line: BadLine) -> Row:
    error = line.error
    fault = LineFault(code=error.code, message=str(error), param=error.param, line=line.number)
    return Row(_new_id(), line.custom_id, None, fault)


def encode_row(row: Row) -> bytes:
    """The row and the end of its line, which it holds nowhere else."""
    return encode_line(row) + b"\n"


def decode_row(text: bytes) -> Row:
    """Raises msgspec.DecodeError when it is no row."""
    return msgspec.json.decode(text, type=Row)


def _new_id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
