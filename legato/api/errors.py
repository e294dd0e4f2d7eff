"""One table from what went wrong to the status and the body that a client gets."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from legato.api.dialects import Dialect, dialect_of
from legato.api.limits import LIMIT_EXCEEDED
from legato.core.errors import (
    ClosedError,
    ConfigError,
    EngineDiedError,
    GrammarFailedError,
    LegatoError,
    ModelError,
    NotReadyError,
    OverloadedError,
    PoisonedRequestError,
    QueueTimeoutError,
    RequestError,
    SlowFirstTokenError,
    SlowReaderError,
    UnknownModelError,
    UnknownRequestError,
)

logger = logging.getLogger(__name__)

# The first row whose class fits counts: subclasses stand before their bases. A RequestError brings its code.
TABLE: tuple[tuple[type[LegatoError], int, str, str | None], ...] = (
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (UnknownRequestError, 404, "invalid_request_error", "request_not_found"),
    (RequestError, 400, "invalid_request_error", None),
    (SlowFirstTokenError, 429, "overloaded", "ttft_limit"),
    (OverloadedError, 429, "overloaded", "queue_full"),
    (QueueTimeoutError, 503, "service_unavailable", "queue_timeout"),
    (ClosedError, 503, "service_unavailable", "shutting_down"),
    (NotReadyError, 503, "service_unavailable", "not_ready"),
    (SlowReaderError, 408, "invalid_request_error", "slow_reader"),
    (PoisonedRequestError, 500, "server_error", "engine_poisoned"),
    (EngineDiedError, 503, "service_unavailable", "engine_died"),
    (ModelError, 503, "service_unavailable", "model_unavailable"),
    (ConfigError, 503, "service_unavailable", "misconfigured"),
    (GrammarFailedError, 500, "server_error", "grammar_failed"),
    (LegatoError, 500, "server_error", "internal_error"),
)
HTTP_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 408: "request_timeout"}
MAX_FAULTS = 8  # told of one body
MAX_NAME_CHARS = 64  # of what a client wrote, in an answer
CLIENT_GONE_STATUS = 499  # nobody reads it; it stands in the log

ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
# How the document of the routes shows them.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "A fault of the request",
        "content": {"application/json": {"schema": _ERROR_SCHEMA}},
    },
    "5XX": {
        "description": "A fault of the server",
        "content": {"application/json": {"schema": _ERROR_SCHEMA}},
    },
}

# An answer that comes whole or, with stream: true, as events.
STREAMED_RESPONSE: dict[str, Any] = {
    "description": "The answer, whole or as events",
    "content": {"application/json": {}, "text/event-stream": {}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """A fault as the client sees it; the fields are named as in OpenAI's shape."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def anthropic_body(self) -> dict[str, Any]:
        """In Anthropic's shape. Its "overloaded" tells to come back, so it needs a time to come back at."""
        type_ = ANTHROPIC_TYPES.get(
            self.status, "api_error" if self.status >= 500 else "invalid_request_error"
        )
        if self.status == 503 and self.headers:
            type_ = "overloaded_error"
        return {"type": "error", "error": {"type": type_, "message": self.message}}

    def response(self, scope: Scope) -> JSONResponse:
        """In the shape that the clients of the path read."""
        is_anthropic = dialect_of(scope) is Dialect.ANTHROPIC
        return JSONResponse(self.anthropic_body() if is_anthropic else self.body(), self.status, self.headers)


def describe(error: Exception, request_id: str) -> ErrorAnswer:
    """What a client is told of `error`; what legato did not foresee is logged and told without its text."""
    for kind, status, type_, code in TABLE:
        if isinstance(error, kind):
            return ErrorAnswer(
                status=status,
                message=str(error),
                type=type_,
                param="model" if kind is UnknownModelError else getattr(error, "param", None),
                code=code or getattr(error, "code", None),
                headers=retry_headers(getattr(error, "retry_after_s", None)),
            )
    logger.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    return ErrorAnswer(
        status=500,
        message="the server failed at this request; its log says why, under the x-request-id of this answer",
        type="server_error",
        code="internal_error",
    )


def describe_validation(error: RequestValidationError) -> ErrorAnswer:
    """The first fault of a body, as OpenAI's 400."""
    fault = error.errors()[0]
    if fault["type"] == "json_invalid":
        position = f" at position {fault['loc'][-1]}" if fault["loc"][-1] else ""
        reason = f"the body is not valid JSON: {fault['ctx']['error']}{position}"
        return ErrorAnswer(status=400, message=reason, code="invalid_json")
    path = [str(part)[:MAX_NAME_CHARS] for part in fault["loc"][1:]]
    if fault["type"] == LIMIT_EXCEEDED:
        param = ".".join(path) or None
        reason = ": ".join((*path, fault["msg"]))
        return ErrorAnswer(status=400, message=reason, param=param, code=LIMIT_EXCEEDED)
    if not path:  # the whole body is at fault
        reason = "the body must be a JSON object, sent with content-type: application/json"
        return ErrorAnswer(status=400, message=reason, code="invalid_body")
    param = ".".join(path)
    return ErrorAnswer(status=400, message=f"{param}: {fault['msg']}", param=param, code="invalid_value")


def list_faults(error: RequestValidationError) -> list[dict[str, Any]]:
    """The first faults of a body in FastAPI's own form, without what is long in them."""
    return [_shortened(fault) for fault in error.errors()[:MAX_FAULTS]]


def _shortened(fault: dict[str, Any]) -> dict[str, Any]:
    loc = [part[:MAX_NAME_CHARS] if isinstance(part, str) else part for part in fault["loc"]]
    given = fault.get("input")
    if isinstance(given, str):
        given = given[:MAX_NAME_CHARS]
    elif not isinstance(given, int) and not (isinstance(given, float) and math.isfinite(given)):
        given = None  # what is long, or no JSON: bytes of another content type, 1e999
    return {"type": fault["type"], "loc": loc, "msg": fault["msg"], "input": given}


def install_error_handlers(app: FastAPI) -> None:
    """Let every error that a route raises be answered by the table."""

    async def answer_legato_error(request: Request, error: Exception) -> Response:
        return describe(error, request.state.request_id).response(request.scope)

    async def answer_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        if dialect_of(request.scope) is Dialect.LESSON:  # as FastAPI itself answers
            return JSONResponse({"detail": list_faults(error)}, 422)
        return describe_validation(error).response(request.scope)

    async def answer_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = error.detail
        if error.status_code in (404, 405):
            message = f"{request.method} {request.scope['path']}: {message}; /docs lists the routes"
        return ErrorAnswer(
            status=error.status_code,
            message=message,
            code=HTTP_CODES.get(error.status_code),
            headers=dict(error.headers or {}),
        ).response(request.scope)

    async def answer_nobody(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE_STATUS)

    app.add_exception_handler(LegatoError, answer_legato_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(ClientDisconnect, answer_nobody)


def retry_headers(wait_s: float | None) -> dict[str, str]:
    """Both spellings that clients honour, rounded up: who comes back then does not come too early."""
    if wait_s is None:
        return {}
    return {
        "retry-after": str(max(1, math.ceil(wait_s))),
        "retry-after-ms": str(max(1, math.ceil(wait_s * 1000))),
    }
