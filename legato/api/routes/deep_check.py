"""/health?deep=1: whether an engine computes, shown by its steps or, when it has none, by a token."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from legato.api.service import ModelService
from legato.core.background import cancel_and_wait
from legato.core.errors import LegatoError
from legato.core.sampling_params import SamplingParams

BUDGET_S = 10.0  # a probe's answer comes within it, whatever the engine does
FRESH_S = 1.0  # so long is an engine that was seen to compute asked nothing more
WATCH_S = 0.02  # between two looks at its steps

_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class DeepCheck:
    """Asks each engine for at most one token at a time, and one a second, however many probes come.

    The token is asked for beside the routes: no key's limit and no measurement of requests knows of it.
    """

    def __init__(self, budget_s: float = BUDGET_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._seen_at: dict[int, float] = {}  # service -> when its engine was last seen to compute
        self._checks: dict[int, asyncio.Task[str | None]] = {}  # under way

    async def fault(self, service: ModelService) -> str | None:
        """Why the engine cannot be seen to compute; None when it can. Never raises."""
        state = service.state()
        if not state.is_ready and state.stage != "overloaded":
            return state.reason
        if _is_unloaded(service):
            return None
        key = id(service)
        if self._clock() - self._seen_at.get(key, -FRESH_S) < FRESH_S:
            return None
        check = self._checks.get(key)
        if check is None or check.done() or check.get_loop() is not asyncio.get_running_loop():
            check = self._checks[key] = asyncio.create_task(self._check(service))
        return await asyncio.shield(check)  # a probe that leaves ends nobody else's

    async def _check(self, service: ModelService) -> str | None:
        since, end = _num_steps(service), self._clock() + self._budget_s
        token: asyncio.Task[None] | None = None
        try:
            while self._clock() < end:
                if token is not None and token.done():
                    token.result()
                if _num_steps(service) > since or (token is not None and token.done()):
                    self._seen_at[id(service)] = self._clock()
                    return None
                if token is None and service.num_pending == 0:  # without work there are no steps to see
                    token = asyncio.create_task(_generate_one_token(service))
                await asyncio.sleep(WATCH_S)
        except LegatoError as error:
            return None if _is_unloaded(service) else str(error)
        finally:
            if token is not None:
                await cancel_and_wait(token)
        return f"the engine has work and took no step in {self._budget_s:g} s"


async def _generate_one_token(service: ModelService) -> None:
    stream = await service.generator.submit([[0]], _ONE_TOKEN)
    async with aclosing(stream):
        async for _ in stream:
            pass


def _is_unloaded(service: ModelService) -> bool:
    """Whether it has no engine and yet takes calls, which will load one: there is none to be stuck."""
    return service.latest_stats() is None and service.state().is_ready


def _num_steps(service: ModelService) -> int:
    stats = service.latest_stats()
    return 0 if stats is None else stats.step
