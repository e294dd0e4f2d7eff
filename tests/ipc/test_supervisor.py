"""How often an engine is started again, and when one that is silent counts as hung."""

import errno
import os

import pytest

from legato.ipc.supervisor import RestartBudget, Watchdog, start_engine


def test_restarts_without_a_token_wait_longer_and_end() -> None:
    budget = RestartBudget((0.0, 1.0, 2.0))
    assert [budget.take() for _ in range(4)] == [0.0, 1.0, 2.0, None]
    budget.refill()
    assert budget.take() == 0.0


def test_death_of_a_request_counts_against_an_engine_only_if_none_ever_worked() -> None:
    broken, sound = RestartBudget((0.0, 1.0)), RestartBudget((0.0, 1.0))
    sound.refill()
    taken = []
    for budget in (broken, sound):
        for _ in range(3):
            taken.append(budget.take())
            budget.pardon()
    assert taken == [0.0, 1.0, None, 0.0, 0.0, 0.0]


def test_work_without_progress_is_a_hang_and_idleness_is_not() -> None:
    now = [0.0]
    watchdog = Watchdog(clock=lambda: now[0])

    def stillness_at(second: float, ticks: int, *, has_work: bool = True) -> float:
        now[0] = second
        return watchdog.stillness_s(ticks, has_work=has_work)

    assert stillness_at(100, 5, has_work=False) == 0
    assert stillness_at(129, 5) == 29
    assert stillness_at(131, 6) == 0
    assert stillness_at(161.5, 6) == 30.5


def test_engine_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr("subprocess.Popen", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no process"):
        start_engine()
    assert os.listdir("/proc/self/fd") == before
