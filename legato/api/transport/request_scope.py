"""The outermost layer: a request's id and arrival time, the last resort for errors, the request log."""

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.api.dialects import Dialect, dialect_of
from legato.api.errors import describe
from legato.api.limits import LIMITS
from legato.observability.tracing import Span

logger = logging.getLogger("legato.requests")

PROBED_PATHS = ("/health", "/ready", "/metrics")  # asked for ever again: they would drown the log
_SAFE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,%d}" % LIMITS["request_id"].maximum)


class RequestScope:
    """ASGI middleware that gives each request an id, its time of arrival and more in its state.

    The id is the client's x-request-id where that is short and plain, else a fresh one; answers carry it, and
    what stands in `answer_headers` when their head goes out. What is put into `on_end` is called, with the
    time, when the answer is out or will never be.
    An error that no handler took is logged and answered with 500; when the answer has begun, it ends the
    connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        is_logged: bool,
        root_path: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._root_path = root_path
        self._is_logged = is_logged
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        received_at = self._clock()
        on_end: list[Callable[[float], None]] = []
        answer_headers: dict[str, str] = {}
        scope["state"] = {
            **scope.get("state", {}),
            "request_id": request_id,
            "received_at": received_at,
            "on_end": on_end,
            "answer_headers": answer_headers,
        }
        scope["root_path"] = scope.get("root_path") or self._root_path
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update({"x-request-id": request_id, **answer_headers})
                if dialect_of(scope) is Dialect.ANTHROPIC:
                    headers["request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            answer = describe(error, request_id)  # logs what is not one of ours
            if status is not None:  # half an answer is out: the broken connection tells the client
                raise
            await answer.response(scope)(scope, receive, send_with_id)
        finally:
            ended_at = self._clock()
            for call in on_end:
                call(ended_at)
            if self._is_logged and not scope["path"].endswith(PROBED_PATHS):
                seconds = ended_at - received_at
                logger.info(
                    "%s %s %r: %s in %.3f s",
                    *(request_id, scope["method"], scope["path"], status, seconds),
                    extra={"request_id": request_id, "trace_id": _trace_id(scope)},
                )


def _trace_id(scope: Scope) -> str | None:
    """Of the span that the call had, if any."""
    span: Span | None = scope["state"].get("span")
    return None if span is None else span.trace_id


def _request_id(scope: Scope) -> str:
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _SAFE_ID.fullmatch(given[0]):
        return str(given[0], "ascii")
    return uuid.uuid4().hex
