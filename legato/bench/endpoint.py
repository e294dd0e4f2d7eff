"""What can be measured: something that completes prompts of token ids and says when each token came."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from legato.bench.works import WorkRequest
from legato.core.errors import LegatoError
from legato.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from legato.frontend.async_llm import AsyncLLM


class BenchError(LegatoError):
    """A measurement could not be made, or what it found is wrong."""


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """When an answer was asked for, when its tokens came and when it was over, by time.perf_counter().

    token_times_s  of each event that carried tokens, mostly one each
    num_tokens     as the answer itself counts them
    """

    started_s: float
    token_times_s: list[float]
    ended_s: float
    num_tokens: int


class Endpoint(Protocol):
    """A server or an engine; `name` is for tables and error texts."""

    @property
    def name(self) -> str: ...

    async def complete(self, request: WorkRequest) -> TimedAnswer:
        """The most probable tokens, exactly as many as wanted. Raises BenchError when it fails."""
        ...


class InProcessEndpoint:
    """An engine of our own without HTTP: what engines that are libraries are compared with."""

    name = "legato in process"

    def __init__(self, llm: "AsyncLLM") -> None:
        self._llm = llm

    async def complete(self, request: WorkRequest) -> TimedAnswer:
        params = SamplingParams(max_tokens=request.max_tokens, temperature=0, ignore_eos=True)
        started_s = time.perf_counter()
        times, num_tokens = [], 0
        try:
            async for delta in await self._llm.submit([request.token_ids], params):
                if delta.token_ids:
                    times.append(time.perf_counter())
                    num_tokens += len(delta.token_ids)
        except LegatoError as error:
            raise BenchError(str(error)) from error
        return TimedAnswer(started_s, times, time.perf_counter(), num_tokens)
