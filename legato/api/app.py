"""create_app: routes, what every request passes, start and end, around the models given to it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from legato import __version__
from legato.api.answers.measured import PREDICTED_TTFT
from legato.api.answers.running import RunningCalls
from legato.api.errors import install_error_handlers
from legato.api.explain.explanations import Explanations
from legato.api.routes import abort, anthropic, explain, lesson, openai, ops, responses, tokenizer
from legato.api.routes.deep_check import DeepCheck
from legato.api.routes.vllm_proxy import VllmProxy
from legato.api.service import ModelService, ServedModels
from legato.api.transport.auth import Authentication
from legato.api.transport.host_check import HostCheck
from legato.api.transport.key_limits import KeyLimits
from legato.api.transport.request_scope import RequestScope
from legato.api.transport.size_limit import SizeLimit
from legato.api.transport.slow_readers import SlowReaders
from legato.api.transport.spans import Spans
from legato.core.api_keys import with_keys_of_file
from legato.core.background import cancel_and_wait, in_own_thread
from legato.core.config import ServerConfig
from legato.core.errors import LegatoError
from legato.observability.metrics import Metrics
from legato.observability.tracing import Tracer, open_tracer

logger = logging.getLogger(__name__)

# What pages of other origins may read beside the body.
EXPOSED_HEADERS = (
    "x-request-id",
    "request-id",
    "x-legato-ignored",
    "x-legato-adjusted",
    PREDICTED_TTFT,
    "retry-after",
    "retry-after-ms",
)

# FastAPI's own would tell what clients send; ours is `observability/tracing.py`. Older versions have none.
NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
LAST_SPANS_S = 2.0  # to send what has not been sent, at the end

# Told once a service how its start has ended: after so many seconds, with None, or with what forbids it.
OnStart = Callable[[ModelService, float, LegatoError | None], None]


def log_start(service: ModelService, seconds: float, error: LegatoError | None) -> None:
    if error is None:
        logger.info("ready: %s, %.1f s after the start", service.names[0], seconds)
    else:
        logger.error("%s cannot be served: %s", service.names[0], error)


def create_app(services: Mapping[str, ModelService], server: ServerConfig) -> FastAPI:
    """The HTTP application that serves `services`, name -> service; the first is the default.

    Several names may share a service. The default's engine starts with the lifespan, and all end with it; the
    others', and where a caller runs no lifespan every engine, start at the first request for them. Nothing is
    kept outside the app: `app.state.on_start` may be set before the lifespan by who tells of starts otherwise
    than by the log. Raises ConfigError for keys that cannot be read, or for spans that nothing installed can
    send.
    """
    models = ServedModels(services)
    server = with_keys_of_file(server)
    app = FastAPI(
        title="legato",
        summary="Large language models over HTTP",
        version=__version__,
        docs_url=None,  # FastAPI's pages load scripts from the internet; routes.ops has ours
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,  # a body without a content type is read as JSON
        telemetry=NO_TELEMETRY,
        lifespan=_lifespan,
    )
    app.state.models = models
    app.state.server = server
    app.state.calls = RunningCalls()
    app.state.explanations = Explanations()
    app.state.is_strict = server.strict
    app.state.on_start = log_start
    app.state.metrics = _metrics(models)
    app.state.deep_check = DeepCheck()
    app.state.tracer = open_tracer(server.otlp_traces_endpoint, __version__)
    app.state.vllm = VllmProxy(server.vllm_url)
    for routes in (openai, responses, anthropic, tokenizer, abort, explain, lesson, ops):
        app.include_router(routes.router)
    install_error_handlers(app)
    _add_transport(app, server)
    return app


def _add_transport(app: FastAPI, server: ServerConfig) -> None:
    """What every request passes; the last one added comes first."""
    # what is counted here is counted for it: the body, which may name another, is not read for that
    [default, *_] = app.state.models.unique()
    metrics: Metrics = app.state.metrics
    app.add_middleware(SizeLimit)
    if server.max_requests_per_key or server.requests_per_minute_per_key:
        app.add_middleware(
            KeyLimits,
            max_at_once=server.max_requests_per_key,
            per_minute=server.requests_per_minute_per_key,
            on_refusal=partial(metrics.rejected, default.names[0]),
        )
    if app.state.tracer is not None:
        attributes: dict[str, str | int] = {"server.address": server.host, "server.port": server.port}
        app.add_middleware(Spans, tracer=app.state.tracer, attributes=attributes)
    if not server.api_key:
        app.add_middleware(HostCheck, names=(server.host, *server.allowed_hosts))
    app.add_middleware(Authentication, api_keys=server.api_key)
    app.add_middleware(
        SlowReaders,
        limit_s=server.send_timeout_s,
        on_cut=partial(metrics.num_slow_readers.add, default.names[0]),
    )
    app.add_middleware(RequestScope, is_logged=server.enable_log_requests, root_path=server.root_path)
    if server.allowed_origins:  # before the keys, which a browser never shows when it asks whether it may
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            allow_private_network=True,  # which a server on one's own machine is
        )


def _metrics(models: ServedModels) -> Metrics:
    lengths = [service.max_model_len for service in models.unique() if service.max_model_len]
    engines = {service.names[0]: service.latest_stats for service in models.unique()}
    return Metrics(engines, max_model_len=max(lengths)) if lengths else Metrics(engines)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the first engine without waiting for it, so that /health and /ready answer meanwhile."""
    services = app.state.models.unique()
    start = asyncio.create_task(_start(services[0], app.state.on_start))
    try:
        yield
    finally:
        await cancel_and_wait(start)
        await asyncio.gather(*(service.close() for service in services))
        if app.state.tracer is not None:
            await _send_last_spans(app.state.tracer)


async def _send_last_spans(tracer: Tracer) -> None:
    """For a moment: whoever takes no spans holds up no end."""
    closing = in_own_thread("tracer-closer", tracer.close)
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.wrap_future(closing), LAST_SPANS_S)


async def _start(service: ModelService, on_start: OnStart) -> None:
    since = time.perf_counter()
    failure = None
    try:
        await service.start()
    except LegatoError as error:  # state() tells clients why
        failure = error
    on_start(service, time.perf_counter() - since, failure)
