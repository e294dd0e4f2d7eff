"""Routes of the serving lesson, with its schemas and defaults, on the same generator as everything else."""

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field

from legato.api.answers.measured import open_stream
from legato.api.answers.plain import join_answers, while_connected
from legato.api.bodies.contract import contract_headers
from legato.api.bodies.generation import GenerationBody
from legato.api.errors import ERROR_RESPONSES
from legato.api.explain.in_answer import explain_member, with_member
from legato.api.limits import LIMITS
from legato.api.routes.vllm_proxy import VllmProxy
from legato.api.sse import EventFormat, EventStream
from legato.api.transport.json_body import StrictJsonRoute
from legato.api.transport.model_lookup import find_started
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams
from legato.frontend.generator import TextStream

# The lesson's own, whatever the model's are; fields of the body win over them.
GENERATE_DEFAULTS: dict[str, Any] = {"max_tokens": 50, "temperature": 0.0}
STREAM_DEFAULTS: dict[str, Any] = {"max_tokens": 20, "temperature": 0.7}
VLLM_DEFAULTS: dict[str, Any] = {"max_tokens": 20, "temperature": 0.7, "top_p": 0.95}

FAULTS = {
    "description": "A body that does not fit: the list of its faults",
    "content": {"application/json": {"schema": {"type": "object", "required": ["detail"]}}},
}
EVENTS = {"description": "Events", "content": {"text/event-stream": {}}}

router = APIRouter(
    route_class=StrictJsonRoute, responses={422: FAULTS, **ERROR_RESPONSES}, tags=["serving lesson"]
)

LessonPrompt = Annotated[str, Field(min_length=1, description="a text to continue", examples=["Hello, I am"])]


class PromptBody(GenerationBody):
    """One prompt, and any of the usual sampling fields."""

    prompt: LessonPrompt


class PromptsBody(GenerationBody):
    """A batch of prompts, and any of the usual sampling fields."""

    prompts: Annotated[
        list[LessonPrompt],
        Field(
            max_length=LIMITS["prompts"].maximum,
            fail_fast=True,
            description="texts to continue",
            examples=[["Hello, I am", "The sea is"]],
        ),
    ]


@router.post("/basic_generate", response_model=None, summary="Prompt and continuation, greedy, 50 tokens")
async def basic_generate(body: PromptBody, request: Request) -> Response:
    [text], headers = await _continue_all(request, body, [body.prompt])
    return JSONResponse(with_member({"generated_text": text}, explain_member(request)), headers=headers)


@router.post("/generate", response_model=None, summary="Each prompt and its continuation, greedy, 50 tokens")
async def generate(body: PromptsBody, request: Request) -> Response:
    """The texts stand in the order of the prompts, however they were batched."""
    texts, headers = await _continue_all(request, body, body.prompts)
    return JSONResponse(with_member({"generated_texts": texts}, explain_member(request)), headers=headers)


@router.post(
    "/generate_stream",
    response_model=None,
    responses={200: EVENTS},
    response_class=Response,
    summary="One event a token, at most 20 tokens",
)
async def generate_stream(body: PromptBody, request: Request) -> Response:
    """Server-Sent Events `{"token", "sequence_id"}`; the stream ends by closing."""
    params, headers = _read_body(request, body, STREAM_DEFAULTS)
    _, service = await find_started(request, None)
    stream = await open_stream(
        request, service, [body.prompt], params, names=body.names(), **body.submit_options()
    )
    return EventStream(_token_events(stream), stream, format=EventFormat(end=b""), headers=headers)


@router.post(
    "/generate_vllm", response_model=None, summary="Continuations alone, computed by vLLM, 20 tokens"
)
async def generate_vllm(body: PromptsBody, request: Request) -> Response:
    """Asks the OpenAI server that --vllm-url names; 503 where none is named."""
    params, headers = _read_body(request, body, VLLM_DEFAULTS)
    proxy: VllmProxy = request.app.state.vllm
    texts = await while_connected(request, proxy.complete(body.prompts, params)) if body.prompts else []
    return JSONResponse({"generated_texts": texts}, headers=headers)


async def _continue_all(
    request: Request, body: GenerationBody, prompts: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Each prompt with its continuation, and the headers of the answer."""
    params, headers = _read_body(request, body, GENERATE_DEFAULTS, explains=True)
    if not prompts:
        return [], headers
    _, service = await find_started(request, None)
    field = "prompt" if isinstance(body, PromptBody) else "prompts"
    stream = await open_stream(
        request, service, prompts, params, prompt_field=field, names=body.names(), **body.submit_options()
    )
    answers = await join_answers(request, stream, len(prompts))
    return [prompt + answer.text for prompt, answer in zip(prompts, answers, strict=True)], headers


async def _token_events(stream: TextStream) -> AsyncGenerator[dict[str, str], None]:
    """An event a token. A delta's text goes with the last of its tokens; those before have ""."""
    sequence_id = uuid.uuid4().hex
    async for delta in stream:
        for _ in delta.token_ids[1:]:
            yield {"token": "", "sequence_id": sequence_id}
        if delta.token_ids or delta.text:
            yield {"token": delta.text, "sequence_id": sequence_id}


def _read_body(
    request: Request, body: GenerationBody, defaults: dict[str, Any], *, explains: bool = False
) -> tuple[SamplingParams, dict[str, str]]:
    """What a body asks for, and the headers of its answer.

    Raises RequestValidationError, FastAPI's 422, when it does not fit.
    """
    with _answered_as_422():
        headers = contract_headers(request, body, explains=explains)
        body.submit_options()
        body.names()
        return body.sampling_params(defaults), headers


@contextmanager
def _answered_as_422() -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        fault = {
            "type": error.code,
            "loc": ("body", error.param),
            "msg": str(error),
            "input": None,
        }
        raise RequestValidationError([fault]) from error
