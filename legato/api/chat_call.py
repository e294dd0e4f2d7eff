"""The one way from a conversation to the deltas of its answers, for every route that holds one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from legato.api.answers.chat import ChatStream
from legato.api.answers.measured import open_stream
from legato.api.service import ModelService
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What a client asks for, in OpenAI's terms.

    messages          as plain_messages takes them
    prompt_field      the body's field that they came in
    template_options  of Generator.chat_prompt
    submit_options    of Generator.submit
    """

    messages: Sequence[Any]
    params: SamplingParams
    prompt_field: str = "messages"
    n: int = 1
    template_options: Mapping[str, Any] = field(default_factory=dict)
    submit_options: Mapping[str, Any] = field(default_factory=dict)


async def open_chat(request: Request, service: ModelService, call: ChatCall) -> ChatStream:
    """Apply the chat template and queue the answers. Raises LegatoError when nothing was queued."""
    try:
        prompt = await service.generator.chat_prompt(call.messages, **call.template_options)
    except RequestError as error:
        if error.param == "messages":
            error.param = call.prompt_field
        raise
    stream = await open_stream(
        request,
        service,
        [prompt],
        call.params,
        prompt_field=call.prompt_field,
        n=call.n,
        **call.submit_options,
    )
    return ChatStream(stream)
