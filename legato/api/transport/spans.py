"""A span for each call that generates, from its head to the end of its answer."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.api.dialects import served_path
from legato.api.transport.key_limits import GENERATING_PATHS
from legato.observability.tracing import Tracer

CHAT_PATHS = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses"})


class Spans:
    """ASGI middleware that gives such calls `state["span"]`, for those who know more of them to tell it.

    Stands after Authentication: strangers leave no spans.
    """

    def __init__(self, app: ASGIApp, *, tracer: Tracer, attributes: Mapping[str, str | int]) -> None:
        self._app = app
        self._tracer = tracer
        self._attributes = attributes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or served_path(scope) not in GENERATING_PATHS:
            await self._app(scope, receive, send)
            return
        operation = "chat" if served_path(scope) in CHAT_PATHS else "text_completion"
        span = self._tracer.start(operation, _trace_headers(scope))
        span.tell(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "legato",
                "legato.request_id": scope["state"]["request_id"],
                **self._attributes,
            }
        )
        scope["state"].update(span=span, operation=operation)

        async def send_with_status(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                span.fail(str(message["status"]), is_ours=message["status"] >= 500)
            await send(message)

        try:
            await self._app(scope, receive, send_with_status)
        except Exception as error:
            span.fail(type(error).__name__, is_ours=True)
            raise
        finally:
            span.end()


def _trace_headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }
