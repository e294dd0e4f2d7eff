"""Anthropic's routes: messages, and the count of their tokens."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from legato.api.answers.anthropic import ANTHROPIC_EVENTS, MessageAnswer
from legato.api.answers.deadlines import Deadlines
from legato.api.answers.plain import read_whole
from legato.api.bodies.anthropic.body import CountTokensBody, MessagesBody
from legato.api.bodies.contract import contract_headers
from legato.api.chat_call import ChatCall, open_chat
from legato.api.errors import STREAMED_RESPONSE
from legato.api.explain.in_answer import events_with_member, explain_member, with_member
from legato.api.json_text import JsonAnswer
from legato.api.sse import EventStream
from legato.api.transport.json_body import StrictJsonRoute
from legato.api.transport.model_lookup import find_started

ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": whose, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    for status, whose in (("4XX", "A fault of the request"), ("5XX", "A fault of the server"))
}

router = APIRouter(route_class=StrictJsonRoute, responses=ERRORS, tags=["Anthropic"])


@router.post(
    "/v1/messages",
    response_model=None,
    responses={200: STREAMED_RESPONSE},
    summary="Answer a conversation, as Anthropic's API does",
)
async def create_message(body: MessagesBody, request: Request) -> Response:
    """Apply the model's chat template and generate one answer; `stream: true` sends it as it comes."""
    headers = contract_headers(request, body, explains=True)
    name, service = await find_started(request, body.model)
    answer = MessageAnswer(model=name)
    call = ChatCall(
        messages=body.as_chat(),
        params=body.sampling_params(service.default_params),
        names=[answer.id, *body.names()],
        **body.tool_options(),
        template_options=body.template_options(),
        submit_options=body.submit_options(),
    )
    stream = await open_chat(request, service, call)
    explain = explain_member(request)
    if body.stream:
        events = events_with_member(answer.events(stream), explain, {"message_stop": None})
        return EventStream(events, stream, format=ANTHROPIC_EVENTS, headers=headers)
    whole = await read_whole(request, stream, answer.whole(stream))
    return JsonAnswer(with_member(whole, explain), headers=headers)


@router.post("/v1/messages/count_tokens", response_model=None, summary="Count the tokens of a conversation")
async def count_tokens(body: CountTokensBody, request: Request) -> Response:
    headers = contract_headers(request, body)
    _, service = await find_started(request, body.model)
    async with Deadlines.of(request).while_queueing():
        prompt = await service.generator.chat_prompt(
            body.as_chat(), tools=body.told_tools(), **body.template_options()
        )
    return JSONResponse({"input_tokens": len(prompt)}, headers=headers)
