"""Work beside the caller's: blocking work in a thread of its own, and the end of asyncio tasks."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_own_thread(name: str, work: Callable[[], Result]) -> "Future[Result]":
    """Start `work` at once in a daemon thread: it waits for no pool, and nobody's exit waits for it.

    Several callers may await the future, and none of them can cancel it.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """End tasks whose results nobody needs; they have ended when this returns."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
