"""Spans by OpenTelemetry, sent over OTLP/HTTP; the one door to its packages, which are an extra.

The SDK reads its own OTEL_* variables: service name, resource, sampler, headers, batching.
"""

import logging
import os
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from legato.observability.tracing import Value

logger = logging.getLogger(__name__)


class OtlpTracer:
    """Implements Tracer. Spans are sent from a thread of their own; those that are too many are lost."""

    def __init__(self, processor: SpanProcessor, version: str = "") -> None:
        own = {"service.version": version}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            own["service.name"] = "legato"
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("legato", version)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str, version: str) -> "OtlpTracer":
        # what fails is told once, by OnceLogged; the packages would tell of each try
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        return cls(BatchSpanProcessor(OnceLogged(OTLPSpanExporter(endpoint=endpoint), endpoint)), version)

    def start(self, name: str, headers: Mapping[str, str]) -> "OtlpSpan":
        context = self._propagator.extract(headers)
        return OtlpSpan(self._tracer.start_span(name, context=context, kind=SpanKind.SERVER))

    def close(self) -> None:
        self._provider.shutdown()


class OtlpSpan:
    """Implements Span."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self._has_failed = False
        self.trace_id = format_trace_id(span.get_span_context().trace_id)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def tell(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def fail(self, error_type: str, *, is_ours: bool) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        self._span.set_attribute("error.type", error_type)
        if is_ours:
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        self._span.end()


class OnceLogged(SpanExporter):
    """Hands spans on; tells the log when that begins to fail and when it works again, and nothing between."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
            reason = "it did not take them"
        except Exception as error:  # whatever it is, spans are lost and nothing else
            result, reason = SpanExportResult.FAILURE, repr(error)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            logger.warning(
                "spans cannot be sent to %s (%s); they are lost until it works again", self._endpoint, reason
            )
        elif self._is_failing and not is_failing:
            logger.info("spans are sent to %s again", self._endpoint)
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
