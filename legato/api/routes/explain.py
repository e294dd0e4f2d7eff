"""Where the time of a request went: by the id that its client knows."""

import asyncio
from time import perf_counter
from typing import Any

from fastapi import APIRouter, Request

from legato.api.errors import ERROR_RESPONSES
from legato.api.explain.explanations import Explanations
from legato.core.errors import EngineDiedError, NotReadyError

ENGINE_TIMEOUT_S = 30.0  # it answers between two steps

router = APIRouter(responses=ERROR_RESPONSES, tags=["requests"])


@router.get("/v1/requests/{request_id:path}/explain", summary="Where the time of a request went")
async def explain_request(request_id: str, request: Request) -> dict[str, Any]:
    """The causes of its elapsed time, one after another, of one that runs up to now. The id is that of the
    answer's object, its `x-request-id`, or the `request_id` of the body; 404 when no such request runs or has
    ended lately. With several API keys, a key explains its own requests alone."""
    explanations: Explanations = request.app.state.explanations
    call = explanations.find(getattr(request.state, "tenant", None), request_id)
    if call.ended_at is not None:
        return {"status": "ended"} | call.explain(perf_counter())
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S):
            courses = (await call.service.stats()).courses
    except TimeoutError:
        explanation = call.explain(perf_counter())
    except (NotReadyError, EngineDiedError):
        explanation = call.explain(perf_counter(), missing="restart")
    else:
        own = {request_id: courses[request_id] for request_id in call.request_ids if request_id in courses}
        explanation = call.explain(perf_counter(), own)
    return {"status": "running"} | explanation
