"""Who may run beside whom: many side by side, or one alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lanes:
    """One that wants to be alone waits for those that run; those that come later wait for it."""

    def __init__(self) -> None:
        self._num_running = 0
        self._num_to_be_alone = 0  # waiting for it, or alone now
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def side_by_side(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._num_to_be_alone)
            self._num_running += 1
        try:
            yield
        finally:
            await self._leave()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self._num_to_be_alone += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._num_running)
                self._num_running += 1
            try:
                yield
            finally:
                await self._leave()
        finally:
            self._num_to_be_alone -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _leave(self) -> None:
        async with self._changed:
            self._num_running -= 1
            self._changed.notify_all()
