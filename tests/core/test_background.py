"""Work in a thread of its own: its result, its fault, and nobody who can stop it."""

import threading

import pytest

from legato.core.background import in_own_thread


def test_result_and_fault_come_back() -> None:
    def fail() -> None:
        raise ZeroDivisionError("planted")

    assert in_own_thread("worker", threading.current_thread).result(20).name == "worker"
    with pytest.raises(ZeroDivisionError, match="planted"):
        in_own_thread("worker", fail).result(20)


def test_work_is_of_a_daemon_and_cannot_be_cancelled() -> None:
    may_end = threading.Event()
    future = in_own_thread("worker", lambda: may_end.wait(20) and threading.current_thread().daemon)
    assert not future.cancel()
    may_end.set()
    assert future.result(20)
