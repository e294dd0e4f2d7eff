"""OpenAI's Responses API, without anything stored: each call brings its whole conversation."""

from fastapi import APIRouter, Request, Response

from legato.api.answers.plain import read_whole
from legato.api.answers.responses import ResponseAnswer
from legato.api.bodies.contract import contract_headers
from legato.api.bodies.responses.body import ResponsesBody
from legato.api.chat_call import ChatCall, open_chat
from legato.api.errors import ERROR_RESPONSES, STREAMED_RESPONSE
from legato.api.explain.in_answer import events_with_member, explain_member, with_member
from legato.api.json_text import JsonAnswer
from legato.api.sse import EventStream
from legato.api.transport.json_body import StrictJsonRoute
from legato.api.transport.model_lookup import find_started

LAST_EVENTS = {"response.completed": "response", "response.incomplete": "response"}

router = APIRouter(route_class=StrictJsonRoute, responses=ERROR_RESPONSES, tags=["OpenAI"])


@router.post(
    "/v1/responses",
    response_model=None,
    responses={200: STREAMED_RESPONSE},
    summary="Answer a conversation, as a list of output items",
)
async def create_response(body: ResponsesBody, request: Request) -> Response:
    """Apply the model's chat template and generate one answer; `stream: true` sends it as typed events."""
    headers = contract_headers(request, body, explains=True)
    name, service = await find_started(request, body.model)
    params = body.sampling_params({"max_tokens": None, **service.default_params})
    answer = ResponseAnswer(body.settings(name, params), service.generator.vocabulary, body.num_logprobs())
    call = ChatCall(
        messages=body.as_chat(),
        prompt_field="input",
        params=params,
        names=[answer.id, *body.names()],
        **body.tool_options(),
        template_options=body.template_options(),
        submit_options=body.submit_options(),
    )
    stream = await open_chat(request, service, call)
    explain = explain_member(request)
    if body.stream:
        events = events_with_member(answer.events(stream), explain, LAST_EVENTS)
        return EventStream(events, stream, format=answer.format, headers=headers)
    whole = await read_whole(request, stream, answer.whole(stream))
    return JsonAnswer(with_member(whole, explain), headers=headers)
