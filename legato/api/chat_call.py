"""The one way from a conversation to the deltas of its answers, for every route that holds one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fastapi import Request

from legato.api.answers.chat import ChatStream
from legato.api.answers.deadlines import Deadlines
from legato.api.answers.measured import open_stream
from legato.api.service import ModelService
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams
from legato.tokenization.tool_calls.grammar import tool_grammar
from legato.tokenization.tool_calls.tools import Tool, ToolChoice, check_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What a client asks for, in OpenAI's terms.

    messages          as plain_messages takes them
    prompt_field      the body's field that they came in
    names             that can abort the call
    tools             that the model may call, as tool_choice says
    parallel_tool_calls  False = at most one call an answer
    template_options  of Generator.chat_prompt
    submit_options    of open_stream
    """

    messages: Sequence[Any]
    params: SamplingParams
    prompt_field: str = "messages"
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
    prompt = await _chat_prompt(request, service, call, () if use is None else use.tools)
    params, options, make_reader = call.params, dict(call.submit_options), None
    if use is not None:
        tool_format = service.generator.tool_format
        make_reader = partial(tool_format.reader, [tool.name for tool in use.callable])
        options["shown_ids"] = tuple(tool_format.token_ids.values())
        if use.is_constrained or params.grammar is not None:
            params = replace(params, grammar=tool_grammar(use, tool_format, params.grammar))
            options["grammar_field"] = "tools"
    stream = await open_stream(
        request,
        service,
        [prompt],
        params,
        prompt_field=call.prompt_field,
        n=call.n,
        names=call.names,
        **options,
    )
    return ChatStream(stream, make_reader, is_said=use is None or not use.is_forced)


async def _chat_prompt(
    request: Request, service: ModelService, call: ChatCall, tools: Sequence[Tool]
) -> list[int]:
    """The prompt's ids. Raises RequestError that names the body's own field."""
    try:
        async with Deadlines.of(request).while_queueing():
            return await service.generator.chat_prompt(call.messages, tools=tools, **call.template_options)
    except RequestError as error:
        if error.param == "messages":
            error.param = call.prompt_field
        raise
