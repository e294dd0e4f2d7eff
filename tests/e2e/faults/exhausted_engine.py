"""An engine process in which the n-th call of one kind fails, and only that one: LEGATO_TEST_EXHAUST=kind:n.

kinds: page (an allocation of pages), step (a forward), plan, send (a message to the API process), add.
"""

import os
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from legato.engine import __main__ as engine
from legato.engine.core import Core
from legato.executor.model_runner import ModelRunner
from legato.ipc.channel import Channel, ChannelClosedError
from legato.kvcache.page_allocator import PageAllocator
from legato.scheduler.scheduler import Scheduler

PLACES: dict[str, tuple[type, str, type[Exception]]] = {
    "page": (PageAllocator, "allocate", MemoryError),
    "step": (ModelRunner, "run", MemoryError),
    "plan": (Scheduler, "plan", MemoryError),
    "add": (Core, "add", MemoryError),
    "send": (Channel, "send_frame", ChannelClosedError),
}


def fail_once(owner: type, method: str, error: type[Exception], number: int) -> None:
    """Let the call of that number raise `error`."""
    works: Callable[..., Any] = getattr(owner, method)
    numbers = count(1)

    def fails_once(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == number:
            raise error
        return works(*arguments, **options)

    setattr(owner, method, fails_once)


if __name__ == "__main__":
    kind, _, number = os.environ["LEGATO_TEST_EXHAUST"].partition(":")
    fail_once(*PLACES[kind], int(number))
    sys.exit(engine.main())
