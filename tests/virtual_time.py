"""An event loop whose time passes only while there is nothing to do, and then at once."""

import asyncio
import selectors
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For tests of timers: they fire in order, without a wait, and never before what is ready has run.

    Not for work in threads: the loop does not wait for it while a timer is set.
    """

    def __init__(self) -> None:
        self._selector_of_time = _Selector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        return self._selector_of_time.now


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """Lets time pass instead of waiting for so long."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events:
            self.now += timeout
        return events
