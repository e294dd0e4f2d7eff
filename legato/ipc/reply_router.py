"""Matches what an engine says to who asked for it, by id, never by order."""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count

from legato.ipc.drain_rate import DrainRate
from legato.ipc.messages import (
    Abort,
    Aborted,
    Accepted,
    AddRequest,
    EngineStats,
    Failed,
    Ready,
    Rejected,
    StatsQuery,
    TokenOutput,
)
from legato.ipc.pending import PendingRequests
from legato.ipc.prediction.first_token import FirstToken, FirstTokenPredictor

Reply = Accepted | Rejected | Aborted | TokenOutput | Failed
Sink = Callable[[Reply], None]  # called on the thread that reads from the engine; must not block or raise
StatsSink = Callable[[EngineStats | Failed], None]  # the same; Failed when the engine ended before


class ReplyRouter:
    """Who waits for what. Thread-safe; sinks are called without the lock."""

    def __init__(self, predictor: FirstTokenPredictor | None = None) -> None:
        self.latest_stats = EngineStats()
        self._past = EngineStats()  # what engines have counted that are gone, and how many these are
        self.drain_rate = DrainRate()
        self._lock = threading.Lock()
        self._pending = PendingRequests()
        self._predictor = predictor or FirstTokenPredictor()
        self._stats_sinks: dict[str, StatsSink] = {}
        self._query_numbers = count(1)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def retry_after_s(self) -> float:
        """When one in sixteen of those who wait now will have ended: there is room again then."""
        return self.drain_rate.wait_s(1 + self.num_pending // 16)

    def begin(self, ready: Ready) -> None:
        """An engine waits for work."""
        with self._lock:
            self._predictor.begin(ready)

    def first_token(
        self, token_ids: Sequence[int], cache_salt: str = "", tenant: str = "", limit_s: float = math.inf
    ) -> FirstToken | None:
        """When a prompt that came now would have its first token."""
        with self._lock:
            return self._predictor.predict(token_ids, cache_salt, tenant, limit_s)

    def expect(self, requests: Sequence[AddRequest], sink: Sink) -> None:
        """From now on, all that is said about these requests goes to `sink`."""
        with self._lock:
            self._pending.add(requests, sink)
            self._predictor.add(requests)

    def take_unsent(self) -> list[AddRequest]:
        """The requests that the engine must be told of now."""
        with self._lock:
            return self._pending.take_unsent()

    def expect_stats(self, sink: StatsSink) -> StatsQuery:
        query = StatsQuery(query_id=f"stats-{next(self._query_numbers)}")
        with self._lock:
            self._stats_sinks[query.query_id] = sink
        return query

    def forget(self, request_ids: Iterable[str], last_word: Sink | None = None) -> list[Abort]:
        """Their sinks are not called again; the messages that tell the engine so.

        last_word  is given an Aborted of each that the engine knows, unless that dies before
        """
        with self._lock:
            forgotten = list(request_ids)
            for each in forgotten:
                self._predictor.forget(each)
            return [Abort(request_id=each) for each in self._pending.forget(forgotten, last_word)]

    def route(self, message: Reply | EngineStats) -> None:
        """Hand one message to whoever waits for it; a request that has ended is forgotten."""
        if isinstance(message, EngineStats):
            self.latest_stats = message.after(self._past)
            with self._lock:
                self._predictor.take_stats(message)
                stats_sink = self._stats_sinks.pop(message.query_id, None)
            if stats_sink is not None:
                stats_sink(message)
            return
        with self._lock:
            num_before = len(self._pending)
            delivery = self._pending.record(message)
            if isinstance(message, TokenOutput):
                self._predictor.take_token(message)
            elif not isinstance(message, Accepted):
                self._predictor.forget(message.request_id)
            if len(self._pending) < num_before and not isinstance(message, Rejected):
                self.drain_rate.count_end()
        if delivery is not None:
            sink, news = delivery
            sink(news)

    def engine_died(self, running_ids: Collection[str], reason: str) -> bool:
        """Requests wait for the next engine; queries fail, and the request that has killed this one.

        Returns whether there is such a request.
        """
        self._past = self.latest_stats = EngineStats(deaths=1).after(self.latest_stats)
        with self._lock:
            poisoned = self._pending.engine_died(running_ids, reason)
            for _, failed in poisoned:
                self._predictor.forget(failed.request_id)
            queries = self._take_queries()
        for sink, failed in poisoned:
            sink(failed)
        _fail(queries, reason)
        return bool(poisoned)

    def fail_all(self, reason: str) -> None:
        """No engine will answer: tell everyone who waits."""
        with self._lock:
            lost: dict[str, Callable[[Failed], None]] = {**self._pending.take_all(), **self._take_queries()}
            for each in lost:
                self._predictor.forget(each)
        _fail(lost, reason)

    def _take_queries(self) -> dict[str, StatsSink]:
        queries, self._stats_sinks = self._stats_sinks, {}
        self.latest_stats = EngineStats().after(self.latest_stats)
        return queries


def _fail(lost: "dict[str, Callable[[Failed], None]] | dict[str, StatsSink]", reason: str) -> None:
    for request_id, sink in lost.items():
        sink(Failed(request_id=request_id, error=reason))
