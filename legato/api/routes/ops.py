"""Routes for those who run the server: health, readiness, metrics, version, ledgers, a page of routes."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse

from legato.api.errors import ERROR_RESPONSES
from legato.api.routes.deep_check import DeepCheck
from legato.api.service import ModelService, ServedModels, ServiceState
from legato.api.transport.model_lookup import ModelsDep
from legato.core.config import ServerConfig
from legato.core.errors import NotReadyError
from legato.observability.metrics import CONTENT_TYPE, Metrics

STATS_TIMEOUT_S = 30.0  # the engine answers between two steps
DOCS_PAGE = Path(__file__).parent / "static" / "docs.html"
# The browser is held to it: what is neither in the page nor on this server is not loaded.
DOCS_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(responses=ERROR_RESPONSES, tags=["operations"])


@router.head("/health", include_in_schema=False)
@router.get("/health", response_model=None, summary="Whether the server lives")
async def health(request: Request, models: ModelsDep, deep: bool = False) -> Response:
    """200 while an engine serves, loads or is being replaced; else 503 with the reason. Of several models
    one that has failed ends no others: the body names it.

    With `?deep=1` each engine must also have made progress in the last second, or give a token within
    seconds.
    """
    states = [service.state() for service in models.unique()]
    dead = [state for state in states if not state.is_alive]
    reason = "; ".join(state.reason for state in dead)
    if len(dead) == len(states):
        return JSONResponse({"status": "dead", "reason": reason}, 503)
    if deep:
        check: DeepCheck = request.app.state.deep_check
        alive = [service for service, state in zip(models.unique(), states, strict=True) if state.is_alive]
        faults = await asyncio.gather(*map(check.fault, alive))
        if any(faults):
            return JSONResponse({"status": "stuck", "reason": "; ".join(filter(None, faults))}, 503)
    return JSONResponse({"status": "degraded", "reason": reason} if dead else {"status": "ok"})


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_model=None, summary="Whether the server takes requests now")
async def ready(request: Request, models: ModelsDep) -> Response:
    """200 when requests are taken; else 503 with the stage of the engine that is nearest to it. Of several
    models, all are told: calls for one that is not loaded are held while it is, once the first one was.
    """
    server: ServerConfig = request.app.state.server
    states = [_state_with_limit(service, server.ttft_limit_s) for service in models.unique()]
    each = {"models": _stages(models, states)} if models.is_several else {}
    if any(state.is_ready for state in states):
        return JSONResponse({"status": "ready"} | each)
    state = max(states, key=lambda state: state.progress)
    answer = _stage(state) | each
    if state.retry_after_s is None:  # asking again would be in vain
        return JSONResponse(answer, 503)
    answer["retry_after_s"] = state.retry_after_s
    return JSONResponse(answer, 503, {"retry-after": str(max(1, math.ceil(state.retry_after_s)))})


@router.get(
    "/metrics", response_class=PlainTextResponse, summary="Measurements, in the text format of Prometheus"
)
async def metrics(request: Request) -> Response:
    measured: Metrics = request.app.state.metrics
    return Response(measured.render(), headers={"content-type": CONTENT_TYPE})


@router.get("/version", summary="The version of legato")
async def version(request: Request) -> dict[str, str]:
    return {"version": request.app.version}


@router.get("/stats", response_model=None, summary="The engine's state, with the ledger of each request")
async def stats(models: ModelsDep, model: str | None = None) -> Response:
    """Gauges, counters and each request's lengths and pages; `?model=` chooses among several models."""
    name, service = models.find(model)
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            answer = await service.stats()
    except TimeoutError:
        raise NotReadyError(f"the engine did not answer within {STATS_TIMEOUT_S:g} s") from None
    fields: dict[str, Any] = msgspec.to_builtins(answer)
    return JSONResponse(
        {"model": name} | {key: fields[key] for key in fields if key not in ("type", "query_id", "courses")}
    )


@router.get("/docs", include_in_schema=False)
async def docs() -> FileResponse:
    return FileResponse(DOCS_PAGE, headers={"content-security-policy": DOCS_POLICY})


def _state_with_limit(service: ModelService, ttft_limit_s: float) -> ServiceState:
    """The service's state; not ready when even the shortest prompt would be refused. A limit of 0 is none."""
    state = service.state()
    predicted = service.first_token(ttft_limit_s) if ttft_limit_s and state.is_ready else None
    if predicted is None or predicted.retry_s == 0:
        return state
    return replace(
        state,
        stage="overloaded",
        is_ready=False,
        reason=f"a first token is predicted to take {predicted.wait_s:.3g} s,"
        f" the limit is {ttft_limit_s:g} s",
        retry_after_s=predicted.retry_s,
    )


def _stages(models: ServedModels, states: list[ServiceState]) -> list[dict[str, Any]]:
    services = models.unique()
    return [{"id": each.names[0]} | _stage(state) for each, state in zip(services, states, strict=True)]


def _stage(state: ServiceState) -> dict[str, Any]:
    return {"stage": state.stage, "progress": state.progress, "reason": state.reason}
