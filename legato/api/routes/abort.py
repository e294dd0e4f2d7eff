"""Ending a call from outside: by id, and in the spellings of vLLM and SGLang."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from legato.api.answers.running import RunningCalls
from legato.api.bodies.contract import contract_headers
from legato.api.bodies.generation import Body, Texts, at_most, optional, unsupported
from legato.api.errors import ERROR_RESPONSES
from legato.api.transport.json_body import StrictJsonRoute
from legato.core.errors import UnknownRequestError

router = APIRouter(route_class=StrictJsonRoute, responses=ERROR_RESPONSES, tags=["requests"])


class AbortBody(Body):
    """SGLang's body: one id."""

    rid: str = Field(description="the id", examples=["chatcmpl-1"])
    abort_all: bool | None = optional(
        "refused when true: a client ends its own requests", False, enum=[False, None]
    )


class AbortManyBody(Body):
    """vLLM's body: several ids."""

    request_ids: Annotated[Texts, at_most("aborts"), Field(description="the ids", examples=[["chatcmpl-1"]])]


@router.post("/v1/requests/{request_id:path}/abort", summary="End a request that runs")
async def abort_request(request_id: str, request: Request) -> dict[str, Any]:
    """Its client gets what there is so far, with the finish reason `abort`. The id is that of the answer's
    object, its `x-request-id`, or the `request_id` of the body; 404 when no such request runs."""
    _calls(request).abort(request_id)
    return {"id": request_id, "aborted": True}


@router.post("/abort_request", response_model=None, summary="The same, as SGLang spells it")
async def abort_request_by_rid(body: AbortBody, request: Request) -> Response:
    """200 also for a request that has ended."""
    headers = contract_headers(request, body)
    if body.abort_all:
        raise unsupported("abort_all")
    return JSONResponse({"aborted": _abort_known(request, [body.rid])}, headers=headers)


@router.post("/abort_requests", response_model=None, summary="The same for several, as vLLM spells it")
async def abort_requests(body: AbortManyBody, request: Request) -> Response:
    """200 also for requests that have ended."""
    headers = contract_headers(request, body)
    return JSONResponse({"aborted": _abort_known(request, body.request_ids)}, headers=headers)


def _abort_known(request: Request, names: list[str]) -> list[str]:
    """Those of `names` that were running."""
    aborted = []
    for name in names:
        try:
            _calls(request).abort(name)
        except UnknownRequestError:
            continue
        aborted.append(name)
    return aborted


def _calls(request: Request) -> RunningCalls:
    calls: RunningCalls = request.app.state.calls
    return calls
