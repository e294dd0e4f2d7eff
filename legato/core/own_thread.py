"""Blocking work in a daemon thread of its own: it waits for no pool, and nobody's exit waits for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_own_thread(name: str, work: Callable[[], Result]) -> "Future[Result]":
    """Start `work` at once; several callers may await the future, and none of them can cancel it."""
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
