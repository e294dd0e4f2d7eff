"""Spans of calls: their names, attributes, errors and ends, and that nobody waits for who takes them."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from legato.api import app as app_module
from legato.api.app import create_app
from legato.core.config import ServerConfig
from legato.core.errors import ConfigError, EngineDiedError, OverloadedError
from legato.observability import tracing
from legato.observability.logs import JsonLines
from legato.observability.otlp import OnceLogged, OtlpTracer
from tests.api.asgi_call import AsgiCall
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator

SECRET = "the secret of the prompt"
CHAT = {"messages": [{"role": "user", "content": SECRET}]}
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def generator() -> FakeGenerator:
    return FakeGenerator("abcd", cached_tokens=1)


@pytest.fixture
def app(exported: InMemorySpanExporter, generator: FakeGenerator, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    tracer = OtlpTracer(SimpleSpanProcessor(exported))
    monkeypatch.setattr(app_module, "open_tracer", lambda endpoint, version: tracer)
    server = ServerConfig(otlp_traces_endpoint="http://127.0.0.1:1/v1/traces", enable_log_requests=True)
    return create_app({"fake": FakeService(generator)}, server)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)


def only_span(exported: InMemorySpanExporter) -> ReadableSpan:
    [span] = exported.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/v1/completions", {"prompt": SECRET}, "text_completion"),
        ("/v1/chat/completions", CHAT, "chat"),
        ("/v1/responses", {"input": SECRET}, "chat"),
        ("/v1/messages", CHAT | {"max_tokens": 8}, "chat"),
        ("/basic_generate", {"prompt": SECRET}, "text_completion"),
        ("/generate", {"prompts": [SECRET]}, "text_completion"),
        ("/generate_stream", {"prompt": SECRET}, "text_completion"),
    ],
)
def test_each_call_that_generates_is_a_span(
    client: TestClient,
    exported: InMemorySpanExporter,
    path: str,
    body: dict[str, Any],
    operation: str,
    stream: bool,
) -> None:
    is_streamable = path.startswith("/v1/")

    answer = client.post(path, json=body | ({"stream": True} if stream and is_streamable else {}))

    assert answer.status_code == 200
    span = only_span(exported)
    told = dict(span.attributes or {})
    assert (span.name, span.kind) == (f"{operation} fake", SpanKind.SERVER)
    assert told["gen_ai.operation.name"] == operation
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "fake"
    assert told["gen_ai.usage.output_tokens"] == 4
    assert told["gen_ai.usage.cache_read.input_tokens"] == 1
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert told["legato.request_id"] == answer.headers["x-request-id"]
    assert 0 <= told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    assert "gen_ai.latency.time_in_queue" in told
    assert "error.type" not in told
    assert SECRET not in span.to_json()


def test_attributes_say_what_was_asked_for_and_what_came(
    client: TestClient, exported: InMemorySpanExporter
) -> None:
    body = {
        "prompt": ["a", "bb"],
        "n": 2,
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "seed": 11,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.25,
        "stop": [SECRET],
    }
    answer = client.post("/v1/completions", json=body).json()

    told = dict(only_span(exported).attributes or {})
    assert told["gen_ai.request.max_tokens"] == 3
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.top_p"] == 0.9
    assert told["gen_ai.request.top_k"] == 7
    assert told["gen_ai.request.seed"] == 11
    assert told["gen_ai.request.frequency_penalty"] == 0.25
    assert told["gen_ai.request.presence_penalty"] == -0.25
    assert told["gen_ai.request.choice.count"] == 2
    assert told["gen_ai.usage.input_tokens"] == 3
    assert told["gen_ai.usage.output_tokens"] == 4 * 3
    assert told["gen_ai.response.finish_reasons"] == ("length",) * 4
    assert told["gen_ai.response.id"] == answer["id"]
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", 8000)


def test_trace_of_the_client_goes_on(client: TestClient, exported: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    span = only_span(exported)
    assert format_trace_id(span.context.trace_id) == TRACE_ID  # type: ignore[union-attr]
    assert span.parent is not None
    assert format_span_id(span.parent.span_id) == PARENT_ID


@pytest.mark.parametrize("given", ["nonsense", f"00-{'0' * 32}-{PARENT_ID}-01", "00-" + "f" * 300])
def test_trace_that_makes_no_sense_begins_anew(
    client: TestClient, exported: InMemorySpanExporter, given: str
) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": given})
    assert answer.status_code == 200
    assert only_span(exported).parent is None


@pytest.mark.parametrize(
    ("refusal", "body", "error_type", "is_ours"),
    [
        (OverloadedError("full", retry_after_s=1), {"prompt": "a"}, "queue_full", False),
        (EngineDiedError("it died"), {"prompt": "a"}, "engine_died", True),
        (None, {"prompt": "a", "temperature": 9}, "400", False),
        (None, {"prompt": "a", "model": "nobody"}, "404", False),
    ],
)
def test_refused_call_is_a_span_with_its_error(
    client: TestClient,
    generator: FakeGenerator,
    exported: InMemorySpanExporter,
    refusal: Exception | None,
    body: dict[str, Any],
    error_type: str,
    is_ours: bool,
) -> None:
    generator.refusal = refusal
    assert client.post("/v1/completions", json=body).status_code >= 400
    span = only_span(exported)
    assert (span.attributes or {})["error.type"] == error_type
    assert (span.status.status_code is StatusCode.ERROR) == is_ours


def test_stream_that_fails_after_its_head_is_a_span_with_the_error(
    client: TestClient, generator: FakeGenerator, exported: InMemorySpanExporter
) -> None:
    generator.failure, generator.fail_after = EngineDiedError("it died"), 2
    assert client.post("/v1/completions", json={"prompt": "a", "stream": True}).status_code == 200
    span = only_span(exported)
    told = dict(span.attributes or {})
    assert told["error.type"] == "engine_died"
    assert told["gen_ai.usage.output_tokens"] == 2
    assert told["gen_ai.response.finish_reasons"] == ("error",)
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_ends_the_span(
    app: FastAPI, generator: FakeGenerator, exported: InMemorySpanExporter, stream: bool
) -> None:
    generator.pause_after = 1

    async def run() -> None:
        call = AsgiCall(app, "/v1/completions", {"prompt": "abc", "stream": stream})
        while not generator.submissions:
            await asyncio.sleep(0)
        call.leave()
        await call.task

    asyncio.run(run())
    told = dict(only_span(exported).attributes or {})
    assert told["gen_ai.response.finish_reasons"] == ("abort",)


def test_calls_that_generate_nothing_are_no_spans(client: TestClient, exported: InMemorySpanExporter) -> None:
    client.get("/health")
    client.get("/v1/models")
    client.post("/tokenize", json={"prompt": "a"})
    assert exported.get_finished_spans() == ()


def test_log_line_of_a_call_has_its_trace(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "legato.requests"):
        client.post(
            "/v1/completions", json={"prompt": "a"}, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        )
        client.get("/v1/models")
    of_call, of_models = (json.loads(JsonLines("legato").format(each)) for each in caplog.records)
    assert of_call["trace_id"] == TRACE_ID
    assert "trace_id" not in of_models


def test_flag_without_the_packages_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"--otlp-traces-endpoint http://h:1: .*pip install 'legato\[otel\]'"
    ):
        create_app({"fake": FakeService()}, ServerConfig(otlp_traces_endpoint="http://h:1"))
    create_app({"fake": FakeService()}, ServerConfig())


class FlakyExporter(SpanExporter):
    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self._results = iter(results)

    def export(self, spans: Any) -> SpanExportResult:
        result = next(self._results)
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None: ...


def test_endpoint_that_is_down_is_told_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    exporter = OnceLogged(FlakyExporter(good, bad, OSError("gone"), bad, good, bad), "http://h:1")
    with caplog.at_level(logging.INFO):
        results = [exporter.export([]) for _ in range(6)]
    assert results == [good, bad, bad, bad, good, bad]
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO", "WARNING"]


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A URL that takes spans, and what it has taken."""
    taken: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
        server.shutdown()
        thread.join()


def test_spans_reach_a_receiver_at_the_end_at_the_latest(
    receiver: tuple[str, list[ExportTraceServiceRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, taken = receiver
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # its spans have errors with texts in them
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url.removesuffix("/v1/traces"))
    with TestClient(create_app({"fake": FakeService()}, ServerConfig(otlp_traces_endpoint=url))) as client:
        client.post("/v1/completions", json={"prompt": SECRET})

    [resource_spans] = [each for request in taken for each in request.resource_spans]
    resource = {each.key: each.value.string_value for each in resource_spans.resource.attributes}
    assert resource["service.name"] == "mine"
    assert [span.name for scope in resource_spans.scope_spans for span in scope.spans] == [
        "text_completion fake"
    ]
    assert SECRET.encode() not in resource_spans.SerializeToString()


def test_server_goes_on_and_ends_where_nobody_takes_its_spans(caplog: pytest.LogCaptureFixture) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}/v1/traces"
    with TestClient(create_app({"fake": FakeService()}, ServerConfig(otlp_traces_endpoint=url))) as client:
        answers = [client.post("/v1/completions", json={"prompt": "a"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]
