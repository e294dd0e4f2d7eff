"""What engines say reaches who waits for it; counters outlive the engine that counted."""

from legato.ipc.messages import EngineStats
from legato.ipc.reply_router import ReplyRouter


def test_counters_go_on_when_an_engine_replaces_another_and_gauges_start_again() -> None:
    router = ReplyRouter()
    router.route(EngineStats(step=50, running=2, prefix_queries=100, prefix_hits=40, preemptions=2))
    assert not router.engine_died([], "it was killed")
    counted = {"step": 50, "prefix_queries": 100, "prefix_hits": 40, "preemptions": 2}
    assert router.latest_stats == EngineStats(**counted, deaths=1)

    router.route(EngineStats(step=3, running=1, prefix_queries=30, prefix_hits=5))
    counted = {"step": 53, "prefix_queries": 130, "prefix_hits": 45, "preemptions": 2}
    assert router.latest_stats == EngineStats(**counted, running=1, deaths=1)

    router.engine_died([], "it was killed again")
    router.fail_all("no other is started")
    assert router.latest_stats == EngineStats(**counted, deaths=2)


def test_last_word_of_an_engine_that_ends_with_the_server_is_not_counted_twice() -> None:
    router = ReplyRouter()
    router.route(EngineStats(step=5, prefix_hits=2))
    router.fail_all("the server is shutting down")
    router.route(EngineStats(step=6, prefix_hits=3))
    assert router.latest_stats == EngineStats(step=6, prefix_hits=3)
