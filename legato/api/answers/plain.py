"""Whole answers: the joined deltas, given up when nobody waits for them any more."""

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from legato.api.answers.chat import ChatDelta
from legato.core.background import cancel_and_wait
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason
from legato.core.timing import Timing
from legato.frontend.generator import TextStream, Usage
from legato.tokenization.tool_calls.reader import ToolCallDelta

T = TypeVar("T")


@dataclass(slots=True)
class ToolCall:
    """One call of a tool; its arguments are the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """The joined deltas of one answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage = Usage(prompt_tokens=0, completion_tokens=0)  # noqa: RUF009 - frozen
    timing: Timing = Timing()  # noqa: RUF009 - frozen


async def join_answers(request: Request, stream: TextStream, num_answers: int) -> list[Answer]:
    """The answers in order.

    Raises ClientDisconnect when the client has left; whatever happens, nothing of `stream` runs on.
    """
    return await read_whole(request, stream, _join(stream, num_answers))


async def read_whole(request: Request, stream: TextStream, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which reads `stream` to its end.

    Raises ClientDisconnect when the client has left; whatever happens, nothing of `stream` runs on.
    """
    try:
        return await while_connected(request, work)
    finally:
        await asyncio.shield(stream.aclose())


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientDisconnect then."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(until_disconnect(request.receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        await cancel_and_wait(working, gone)


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has left; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _join(stream: TextStream, num_answers: int) -> list[Answer]:
    answers = [Answer() for _ in range(num_answers)]
    texts: list[list[str]] = [[] for _ in answers]
    async for delta in stream:
        texts[delta.index].append(delta.text)
        answer = answers[delta.index]
        answer.token_ids += delta.token_ids
        answer.logprobs += delta.logprobs
        answer.prompt_logprobs += delta.prompt_logprobs
        answer.usage, answer.timing = delta.usage, delta.timing
        if isinstance(delta, ChatDelta):
            _join_calls(answer.tool_calls, delta.tool_calls)
        if delta.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
    for answer, parts in zip(answers, texts, strict=True):
        answer.text = "".join(parts)
    return answers


def _join_calls(calls: list[ToolCall], deltas: Iterable[ToolCallDelta]) -> None:
    for delta in deltas:
        if delta.id is not None:
            calls.append(ToolCall(delta.id, delta.name or ""))
        calls[delta.position].arguments += delta.arguments
