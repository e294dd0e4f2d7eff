"""Spans of calls: what may be told of each. Who sends them comes with an extra, and only when asked for."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Protocol

from legato.core.errors import ConfigError

Value = str | int | float | Sequence[str]


class Span(Protocol):
    """One call, from the arrival of its head to the end of its answer.

    trace_id  32 hexadecimal digits, as in traceparent
    """

    @property
    def trace_id(self) -> str: ...

    def rename(self, name: str) -> None: ...

    def tell(self, attributes: Mapping[str, Value]) -> None: ...

    def fail(self, error_type: str, *, is_ours: bool) -> None:
        """The call went wrong, of which the first report counts; `is_ours`: the fault is the server's."""

    def end(self) -> None: ...


class Tracer(Protocol):
    def start(self, name: str, headers: Mapping[str, str]) -> Span:
        """Begin a span; it goes on with the trace that the headers (traceparent, tracestate) speak of."""
        ...

    def close(self) -> None:
        """Write out what is left; may take seconds where nobody takes it."""


def check_tracing(endpoint: str | None) -> None:
    """Raise ConfigError when spans are to be sent to `endpoint` and the packages for it are not there."""
    if endpoint is None:
        return
    needed = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    try:
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as error:  # a package above it
        missing = [str(error.name)]
    if missing:
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint}: spans need OpenTelemetry, and {missing[0]} is not installed;"
            " pip install 'legato[otel]'"
        )


def open_tracer(endpoint: str | None, version: str) -> Tracer | None:
    """What sends legato's spans to `endpoint`; None without one. Raises ConfigError as check_tracing does."""
    check_tracing(endpoint)
    if endpoint is None:
        return None
    from legato.observability.otlp import OtlpTracer

    return OtlpTracer.to(endpoint, version)
