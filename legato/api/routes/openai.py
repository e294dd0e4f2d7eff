"""OpenAI's routes: chat, completions, models."""

from typing import Any

from fastapi import APIRouter, Request, Response

from legato.api.answers.measured import open_stream
from legato.api.answers.openai import AnswerHead, ChatAnswer, CompletionAnswer, OpenAIAnswer
from legato.api.answers.plain import join_answers
from legato.api.answers.report import Report
from legato.api.bodies.contract import contract_headers
from legato.api.bodies.openai import ChatBody, CompletionBody, OpenAIBody
from legato.api.chat_call import ChatCall, open_chat
from legato.api.errors import ERROR_RESPONSES, STREAMED_RESPONSE
from legato.api.explain.in_answer import explain_member
from legato.api.json_text import JsonAnswer
from legato.api.limits import check_limit
from legato.api.service import ModelService, ServedModels
from legato.api.sse import EventStream
from legato.api.transport.json_body import StrictJsonRoute
from legato.api.transport.model_lookup import ModelsDep, find_started
from legato.frontend.generator import TextStream

router = APIRouter(route_class=StrictJsonRoute, responses=ERROR_RESPONSES, tags=["OpenAI"])


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses={200: STREAMED_RESPONSE},
    summary="Answer a conversation",
)
async def create_chat_completion(body: ChatBody, request: Request) -> Response:
    """Apply the model's chat template and generate one answer; `stream: true` sends it as it comes."""
    headers = contract_headers(request, body, explains=True)
    name, service = await find_started(request, body.model)
    report = body.report()
    head = _head(request, ChatAnswer.new_id(), name, service, report)
    call = ChatCall(
        messages=body.messages,
        params=body.sampling_params({"max_tokens": None, **service.default_params}),
        **body.tool_options(),
        n=report.n,
        names=[head.id, *body.names()],
        template_options=body.template_options(),
        submit_options=body.submit_options(),
    )
    stream = await open_chat(request, service, call)
    shape = ChatAnswer(head, stream.prompts)
    return await _answer(request, body, shape, stream, headers, num_answers=report.n)


@router.post(
    "/v1/completions",
    response_model=None,
    responses={200: STREAMED_RESPONSE},
    summary="Continue one or more prompts",
)
async def create_completion(body: CompletionBody, request: Request) -> Response:
    """Continue texts or token ids; the choices stand in the order of the prompts."""
    headers = contract_headers(request, body, explains=True)
    name, service = await find_started(request, body.model)
    report = body.report(echo=body.echo is True)
    params = body.sampling_params(service.default_params)
    prompts = body.prompts()
    num_answers = len(prompts) * report.n
    check_limit("answers", num_answers, param="n")
    head = _head(request, CompletionAnswer.new_id(), name, service, report)
    names = [head.id, *body.names()]
    stream = await open_stream(
        request, service, prompts, params, n=report.n, names=names, **body.submit_options()
    )
    shape = CompletionAnswer(
        head,
        stream.prompts,
        prompts if body.truncate_prompt_tokens is None else stream.prompts,  # what is left of them
        skips_special_tokens=params.skip_special_tokens,
    )
    return await _answer(request, body, shape, stream, headers, num_answers=num_answers)


@router.get("/v1/models", summary="List the served models")
async def list_models(models: ModelsDep) -> dict[str, Any]:
    """With several models each has a `status`: loaded, loading or unloaded."""
    cards = [_model_card(name, service, models) for name, service in models.items()]
    return {"object": "list", "data": cards}


@router.get("/v1/models/{model:path}", summary="Describe a served model")
async def retrieve_model(model: str, models: ModelsDep) -> dict[str, Any]:
    return _model_card(*models.find(model), models)


async def _answer(
    request: Request,
    body: OpenAIBody,
    shape: OpenAIAnswer,
    stream: TextStream,
    headers: dict[str, str],
    *,
    num_answers: int,
) -> Response:
    if body.stream:
        return EventStream(shape.chunks(stream), stream, headers=headers)
    answers = await join_answers(request, stream, num_answers)
    return JsonAnswer(await shape.whole(answers), headers=headers)


def _head(request: Request, answer_id: str, name: str, service: ModelService, report: Report) -> AnswerHead:
    """Made before the call is queued: what it raises leaves nothing behind."""
    return AnswerHead(
        id=answer_id,
        model=name,
        fingerprint=service.fingerprint,
        report=report,
        vocabulary=service.generator.vocabulary,
        explain=explain_member(request),
    )


def _model_card(name: str, service: ModelService, models: ServedModels) -> dict[str, Any]:
    card = {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "legato",
        "max_model_len": service.max_model_len,
    }
    return card | {"status": _status(service)} if models.is_several else card


def _status(service: ModelService) -> dict[str, Any]:
    """As llama.cpp's server tells it of several models: `failed` stands there when it has."""
    state = service.state()
    value = "loaded"
    if state.stage in ("loading", "waiting"):
        value = "loading"
    elif state.stage in ("unloading", "unloaded", "failed"):
        value = "unloaded"
    status: dict[str, Any] = {"value": value, "stage": state.stage, "progress": state.progress}
    return status | {"failed": True, "reason": state.reason} if state.stage == "failed" else status
