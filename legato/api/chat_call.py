"""The one way from a conversation to the deltas of its answers, for every route that holds one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Request

from legato.api.answers.chat import ChatStream
from legato.api.answers.measured import open_stream
from legato.api.service import ModelService
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams
from legato.tokenization.tool_calls.tools import Tool, ToolChoice, check_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What a client asks for, in OpenAI's terms.

    messages          as plain_messages takes them
    names             that can abort the call
    tools             that the model may call, as tool_choice says
    parallel_tool_calls  False = at most one call an answer
    template_options  of Generator.chat_prompt
    submit_options    of open_stream
    """

    messages: Sequence[Any]
    params: SamplingParams
    n: int = 1
    names: Sequence[str] = ()
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()  # noqa: RUF009 - frozen
    parallel_tool_calls: bool = True
    template_options: Mapping[str, Any] = field(default_factory=dict)
    submit_options: Mapping[str, Any] = field(default_factory=dict)


async def open_chat(request: Request, service: ModelService, call: ChatCall) -> ChatStream:
    """Apply the chat template and queue the answers. Raises LegatoError when nothing was queued."""
    use = check_tools(call.tools, call.tool_choice, parallel=call.parallel_tool_calls)
    generator = service.generator
    tools = () if use is None else use.tools
    prompt = await generator.chat_prompt(call.messages, tools=tools, **call.template_options)
    options, make_reader = dict(call.submit_options), None
    if use is not None:
        tool_format = generator.tool_format
        make_reader = partial(tool_format.reader, [tool.name for tool in use.callable])
        options["shown_ids"] = tuple(tool_format.special_ids.values())
        if use.is_constrained:
            reason = (
                "tools can be called as the model likes alone: no forced or single calls, no strict tools"
            )
            raise RequestError(reason, param="tool_choice", code="unsupported")
    stream = await open_stream(
        request,
        service,
        [prompt],
        call.params,
        prompt_field="messages",
        n=call.n,
        names=call.names,
        **options,
    )
    return ChatStream(stream, make_reader)
