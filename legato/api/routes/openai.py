"""OpenAI's routes: chat, completions, models; and vLLM's /tokenize and /detokenize beside them."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from legato.api.answers.measured import open_stream
from legato.api.answers.openai import AnswerHead, ChatAnswer, CompletionAnswer, OpenAIAnswer
from legato.api.answers.plain import join_answers
from legato.api.answers.report import Report
from legato.api.bodies.openai import ChatBody, CompletionBody, DetokenizeBody, OpenAIBody, TokenizeBody
from legato.api.chat_call import ChatCall, open_chat
from legato.api.limits import check_limit
from legato.api.service import ModelService
from legato.api.sse import EventStream
from legato.api.transport.json_body import StrictJsonRoute
from legato.api.transport.model_lookup import ModelsDep
from legato.core.errors import RequestError
from legato.frontend.generator import TextStream

ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "A fault of the request",
        "content": {"application/json": {"schema": ERROR_SCHEMA}},
    },
    "5XX": {
        "description": "A fault of the server",
        "content": {"application/json": {"schema": ERROR_SCHEMA}},
    },
}

router = APIRouter(route_class=StrictJsonRoute, responses=ERRORS, tags=["OpenAI"])


@router.post("/v1/chat/completions", response_model=None, summary="Answer a conversation")
async def create_chat_completion(body: ChatBody, request: Request, models: ModelsDep) -> Response:
    """Apply the model's chat template and generate one answer; `stream: true` sends it as it comes."""
    name, service = await models.find_started(body.model)
    report = body.report()
    call = ChatCall(
        messages=body.messages,
        params=body.sampling_params({"max_tokens": None, **service.default_params}),
        **body.tool_options(),
        n=report.n,
        template_options=body.template_options(),
        submit_options=body.submit_options(),
    )
    stream = await open_chat(request, service, call)
    shape = ChatAnswer(_head(name, service, report, stream))
    return await _answer(request, body, shape, stream, num_answers=report.n)


@router.post("/v1/completions", response_model=None, summary="Continue one or more prompts")
async def create_completion(body: CompletionBody, request: Request, models: ModelsDep) -> Response:
    """Continue texts or token ids; the choices stand in the order of the prompts."""
    name, service = await models.find_started(body.model)
    report = body.report(echo=body.echo is True)
    params = body.sampling_params(service.default_params)
    prompts = body.prompts()
    num_answers = len(prompts) * report.n
    check_limit("answers", num_answers, param="n")
    stream = await open_stream(request, service, prompts, params, n=report.n, **body.submit_options())
    shape = CompletionAnswer(
        _head(name, service, report, stream),
        prompts if body.truncate_prompt_tokens is None else stream.prompts,  # what is left of them
        skips_special_tokens=params.skip_special_tokens,
    )
    return await _answer(request, body, shape, stream, num_answers=num_answers)


@router.get("/v1/models", summary="List the served models")
async def list_models(models: ModelsDep) -> dict[str, Any]:
    return {"object": "list", "data": [_model_card(name, service) for name, service in models.items()]}


@router.get("/v1/models/{model:path}", summary="Describe a served model")
async def retrieve_model(model: str, models: ModelsDep) -> dict[str, Any]:
    return _model_card(*models.find(model))


@router.post("/tokenize", response_model=None, summary="Count and list the tokens of a prompt")
async def tokenize(body: TokenizeBody, models: ModelsDep) -> Response:
    """Tokens of `prompt`, or of the prompt that `messages` give."""
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    _, service = await models.find_started(body.model)
    if body.messages is not None:
        tokens = await _chat_prompt(service, body, body.messages)
    else:
        special = body.add_special_tokens is not False
        tokens = await service.generator.tokenize(body.prompt or "", add_special_tokens=special)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": service.max_model_len}
    return JSONResponse(answer, headers=body.ignored_header())


@router.post("/detokenize", response_model=None, summary="The text of tokens")
async def detokenize(body: DetokenizeBody, models: ModelsDep) -> Response:
    _, service = await models.find_started(body.model)
    text = await service.generator.detokenize(body.tokens)
    return JSONResponse({"prompt": text}, headers=body.ignored_header())


async def _chat_prompt(service: ModelService, body: TokenizeBody, messages: list[Any]) -> list[int]:
    options = body.template_options()
    return await service.generator.chat_prompt(messages, tools=body.told_tools(), **options)


async def _answer(
    request: Request, body: OpenAIBody, shape: OpenAIAnswer, stream: TextStream, *, num_answers: int
) -> Response:
    headers = body.ignored_header()
    if body.stream:
        return EventStream(shape.chunks(stream), stream, headers=headers)
    answers = await join_answers(request, stream, num_answers)
    return JSONResponse(shape.whole(answers), headers=headers)


def _head(name: str, service: ModelService, report: Report, stream: TextStream) -> AnswerHead:
    return AnswerHead(
        model=name,
        fingerprint=service.fingerprint,
        report=report,
        vocabulary=service.generator.vocabulary,
        prompts=stream.prompts,
    )


def _model_card(name: str, service: ModelService) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "legato",
        "max_model_len": service.max_model_len,
    }
