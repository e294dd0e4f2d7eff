"""Asks a generator and gathers whole answers."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.frontend.generator import Generator, Prompt, TextDelta, TextStream, Usage

WAIT_S = 20


@dataclass
class Answered:
    """One answer: the joined deltas, and what the last one said."""

    deltas: list[TextDelta] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [logprobs for delta in self.deltas for logprobs in delta.logprobs]

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.deltas[-1].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.deltas[-1].stop_reason

    @property
    def usage(self) -> Usage:
        return self.deltas[-1].usage


async def gather(stream: TextStream, num_prompts: int = 1) -> list[Answered]:
    answers = [Answered() for _ in range(num_prompts)]
    async with asyncio.timeout(WAIT_S):
        async for delta in stream:
            answers[delta.index].deltas.append(delta)
    return answers


async def answers_to(
    llm: Generator, prompts: Sequence[Prompt], params: SamplingParams, **options: object
) -> list[Answered]:
    return await gather(await llm.submit(prompts, params, **options), len(prompts))  # type: ignore[arg-type]


async def answer_to(
    llm: Generator, prompt: Prompt, params: SamplingParams | None = None, **options: object
) -> Answered:
    return (await answers_to(llm, [prompt], params or SamplingParams(), **options))[0]


async def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.002)
