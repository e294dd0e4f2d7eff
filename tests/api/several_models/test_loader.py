"""Models come when they are asked for and go when others need their memory; nobody is ended for another."""

import threading
from collections.abc import Iterator

import pytest

from legato.api.several_models.loader import RETRY_PAUSES_S
from legato.core.errors import ClosedError, LoadFailedError, ModelError, OverloadedError
from legato.ipc.messages import EngineStats
from tests.api.several_models.loading import PATIENCE_S, Loading, error_of, wait_for


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    loading = Loading(monkeypatch)
    yield loading
    loading.close()


def test_calls_for_a_model_are_held_while_it_is_loaded_once(loading: Loading) -> None:
    loading.engines.may_load.clear()
    tickets = [loading.ask(loading.a) for _ in range(3)]
    wait_for(lambda: loading.engines.loads == ["a"])
    assert not any(ticket.done() for ticket in tickets)

    loading.engines.may_load.set()

    assert [callable(ticket.result(PATIENCE_S)) for ticket in tickets] == [True] * 3
    assert loading.a.num_users == 3
    assert loading.engines.loads == ["a"]


def test_idle_model_makes_room_and_comes_back(loading: Loading) -> None:
    for stay in (loading.a, loading.b, loading.a):
        loading.enter(stay)()
    assert loading.engines.loads == ["a", "b", "a"]
    assert loading.engines.closed == ["a", "b"]
    assert not loading.b.is_loaded
    assert loading.b.service is None


def test_log_says_what_a_load_is_for(loading: Loading, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "legato.api.several_models.loader")
    loading.enter(loading.a)()
    loading.enter(loading.b)()
    assert [each for each in caplog.messages if each.startswith("load: ") and "taken" not in each] == [
        "load: a, at the start",
        "load: b, for 1 request",
    ]


def test_busy_model_is_not_ended_and_its_new_calls_come_after_those_that_wait(loading: Loading) -> None:
    release = loading.enter(loading.a)
    for_b = loading.ask(loading.b)
    wait_for(lambda: loading.a.is_yielding)
    again = loading.ask(loading.a)
    assert (for_b.done(), again.done(), loading.engines.closed) == (False, False, [])

    release()
    leave_b = for_b.result(PATIENCE_S)
    assert (again.done(), loading.engines.loads) == (False, ["a", "b"])
    leave_b()

    again.result(PATIENCE_S)
    assert loading.engines.loads == ["a", "b", "a"]


def test_model_lets_calls_in_again_when_nobody_waits_for_its_memory_any_more(loading: Loading) -> None:
    loading.enter(loading.a)
    for_b = loading.ask(loading.b)
    wait_for(lambda: loading.a.is_yielding)
    again = loading.ask(loading.a)

    for_b.cancel()  # as asyncio does when its client leaves
    loading.loader.leave(loading.b, for_b)

    again.result(PATIENCE_S)
    assert loading.engines.loads == ["a"]


def test_call_that_leaves_just_as_it_is_let_in_holds_nothing(loading: Loading) -> None:
    ticket = loading.ask(loading.a)
    ticket.result(PATIENCE_S)
    loading.loader.leave(loading.a, ticket)
    loading.loader.leave(loading.a, ticket)
    assert loading.a.num_users == 0


def test_held_calls_are_bounded_and_others_are_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading(monkeypatch, limit_bytes=120, max_waiting=2)
    loading.enter(loading.a)
    loading.engines.may_load.clear()
    held = [loading.ask(loading.b) for _ in range(2)]

    with pytest.raises(OverloadedError, match="2 requests wait for b to be loaded, the limit is 2"):
        loading.ask(loading.b)
    loading.enter(loading.a)  # at once, while the other is loaded

    loading.engines.may_load.set()
    assert [callable(ticket.result(PATIENCE_S)) for ticket in held] == [True] * 2
    loading.close()


def test_failed_load_is_told_to_all_and_tried_again_after_a_pause(loading: Loading) -> None:
    loading.engines.may_load.clear()
    loading.engines.errors.append(ModelError("the weights are gone"))
    held = [loading.ask(loading.a) for _ in range(2)]
    loading.engines.may_load.set()

    for ticket in held:
        error = error_of(ticket)
        assert isinstance(error, LoadFailedError)
        assert str(error) == "a cannot be served now: the weights are gone"
        assert error.retry_after_s == RETRY_PAUSES_S[0]
    for _ in range(100):  # no load for each that asks
        with pytest.raises(LoadFailedError, match="the weights are gone"):
            loading.ask(loading.a)
    assert loading.engines.loads == ["a"]

    loading.clock.now += RETRY_PAUSES_S[0]
    loading.enter(loading.a)
    assert loading.engines.loads == ["a", "a"]


def test_pauses_between_failed_loads_grow(loading: Loading) -> None:
    for pause_s in (*RETRY_PAUSES_S, RETRY_PAUSES_S[-1]):
        loading.engines.errors.append(ModelError("no"))
        error = error_of(loading.ask(loading.a))
        assert isinstance(error, LoadFailedError)
        assert error.retry_after_s == pause_s
        loading.clock.now += pause_s


def test_engine_that_is_gone_for_good_frees_its_place_and_is_tried_again_later(loading: Loading) -> None:
    loading.enter(loading.a)
    loading.service(loading.a).die("it was killed too often")

    with pytest.raises(LoadFailedError, match="a cannot be served now: it was killed too often"):
        loading.ask(loading.a)
    loading.enter(loading.b)()  # though the dead one's calls have not all ended
    assert loading.engines.closed == ["a"]

    loading.clock.now += RETRY_PAUSES_S[0]
    loading.enter(loading.a)


def test_counters_go_on_over_the_stays_of_a_model(loading: Loading) -> None:
    for stay in (loading.a, loading.b, loading.a, loading.b):
        release = loading.enter(stay)
        stats = loading.service(stay).engine_stats
        assert stats is not None
        loading.service(stay).engine_stats = type(stats)(step=5, prefix_hits=3, running=1)
        release()
    wait_for(lambda: loading.b.is_loaded)
    assert (loading.a.past.step, loading.a.past.prefix_hits) == (10, 6)


def test_deaths_beyond_the_budget_are_counted_after_the_stay(loading: Loading) -> None:
    loading.enter(loading.a)()
    loading.service(loading.a).engine_stats = EngineStats(step=7, deaths=4)
    loading.service(loading.a).die("it was killed too often")
    loading.enter(loading.b)()
    assert (loading.a.past.step, loading.a.past.deaths) == (7, 4)


def test_call_is_let_in_at_once_only_where_nothing_is_waited_for(loading: Loading) -> None:
    assert loading.loader.enter_now(loading.a) is None
    leave_a = loading.enter(loading.a)
    again = loading.loader.enter_now(loading.a)
    assert again is not None
    assert loading.a.num_users == 2
    again()

    for_b = loading.ask(loading.b)
    wait_for(lambda: loading.a.is_yielding)
    assert loading.loader.enter_now(loading.a) is None
    assert (loading.a.num_users, loading.a.waiting) == (1, {})
    leave_a()
    for_b.result(PATIENCE_S)


def test_thread_sleeps_no_longer_than_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading(monkeypatch, limit_bytes=200, idle_s=1e10)
    loading.enter(loading.a)()
    loading.enter(loading.b)()
    assert loading.loader.failure is None
    loading.close()


def test_model_that_nobody_asks_for_leaves_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading(monkeypatch, limit_bytes=200, idle_s=30.0)
    loading.enter(loading.a)()
    loading.enter(loading.b)
    assert loading.engines.closed == []

    loading.clock.now += 30.0
    loading.enter(loading.c)  # wakes the thread, which would sleep so long

    wait_for(lambda: loading.engines.closed == ["a"])
    assert loading.b.is_loaded
    loading.close()


def test_drain_ends_those_that_wait_and_nobody_else(loading: Loading) -> None:
    release = loading.enter(loading.a)
    for_b = loading.ask(loading.b)

    loading.loader.drain()

    assert isinstance(error_of(for_b), ClosedError)
    with pytest.raises(ClosedError):
        loading.ask(loading.a)
    assert loading.engines.closed == []
    release()


def test_close_ends_a_load_and_the_thread(loading: Loading) -> None:
    loading.engines.may_load.clear()
    ticket = loading.ask(loading.a)
    wait_for(lambda: loading.engines.loads == ["a"])

    loading.close()

    assert isinstance(error_of(ticket), ClosedError)
    wait_for(lambda: not any(each.name == "model-loader" for each in threading.enumerate()))
    assert set(loading.engines.closed) == {"a"}
    with pytest.raises(ClosedError):
        loading.ask(loading.b)


def test_files_that_have_grown_since_the_start_make_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading(monkeypatch, limit_bytes=180)
    for stay in (loading.a, loading.b):
        loading.enter(stay)()
        loading.clock.now += 1.0
    loading.needs["c"] = 100

    loading.enter(loading.c)()

    assert loading.engines.closed == ["a"]
    assert sum(stay.need_bytes for stay in loading.loader.stays if stay.is_loaded) == 160
    loading.close()


@pytest.mark.parametrize("kind", [ModelError, FileNotFoundError])
def test_files_that_went_bad_since_the_start_fail_their_own_model(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    error_of_files = kind("b needs about 900 MiB")
    loading.enter(loading.a)()

    def fail(*_: object) -> None:
        raise error_of_files

    with monkeypatch.context() as patch:
        patch.setattr("legato.api.several_models.loader.need_of", fail)
        error = error_of(loading.ask(loading.b))
    assert isinstance(error, LoadFailedError)
    assert str(error) == "b cannot be served now: b needs about 900 MiB"
    loading.enter(loading.a)()
    loading.clock.now += RETRY_PAUSES_S[0]
    loading.enter(loading.b)()


def test_models_that_cannot_be_planned_are_an_error_for_all(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("no model 'c'")

    monkeypatch.setattr("legato.api.several_models.loader.need_of", fail)
    assert str(error_of(loading.ask(loading.a))) == "no model 'c'"
    with pytest.raises(ModelError, match="no model 'c'"):
        loading.ask(loading.b)
    assert loading.loader.fault_of(loading.b) == "no model 'c'"
