"""Whole answers: the joined deltas, given up when nobody waits for them any more."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from legato.core.sampling_params import FinishReason
from legato.frontend.generator import TextStream, Usage

T = TypeVar("T")


@dataclass(slots=True)
class Answer:
    """The joined deltas of one prompt."""

    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage = Usage(prompt_tokens=0, completion_tokens=0)  # noqa: RUF009 - frozen


async def join_answers(request: Request, stream: TextStream, num_prompts: int) -> list[Answer]:
    """The answers in the order of the prompts.

    Raises ClientDisconnect when the client has left; whatever happens, nothing of `stream` runs on.
    """
    try:
        return await while_connected(request, _join(stream, num_prompts))
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


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """End tasks whose results nobody needs; they have ended when this returns."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _join(stream: TextStream, num_prompts: int) -> list[Answer]:
    answers = [Answer() for _ in range(num_prompts)]
    texts: list[list[str]] = [[] for _ in answers]
    async for delta in stream:
        texts[delta.index].append(delta.text)
        answer = answers[delta.index]
        answer.usage = delta.usage
        if delta.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
    for answer, parts in zip(answers, texts, strict=True):
        answer.text = "".join(parts)
    return answers
