"""Matches what an engine says to who asked for it, by id, never by order."""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from legato.ipc.messages import (
    Abort,
    Accepted,
    AddRequest,
    EngineStats,
    Failed,
    Rejected,
    StatsQuery,
    TokenOutput,
)

Reply = Accepted | Rejected | TokenOutput | Failed
Sink = Callable[[Reply], None]  # called on the thread that reads from the engine; must not block or raise
StatsSink = Callable[[EngineStats | Failed], None]  # the same; Failed when the engine ended before


class ReplyRouter:
    """Who waits for what. Thread-safe; sinks are called without the lock."""

    def __init__(self) -> None:
        self.latest_stats = EngineStats()
        self._lock = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self._stats_sinks: dict[str, StatsSink] = {}
        self._query_numbers = count(1)

    def expect(self, requests: Sequence[AddRequest], sink: Sink) -> None:
        """From now on, all that is said about these requests goes to `sink`."""
        with self._lock:
            self._sinks |= {request.request_id: sink for request in requests}

    def expect_stats(self, sink: StatsSink) -> StatsQuery:
        query = StatsQuery(query_id=f"stats-{next(self._query_numbers)}")
        with self._lock:
            self._stats_sinks[query.query_id] = sink
        return query

    def forget(self, request_ids: Iterable[str]) -> list[Abort]:
        """Their sinks are not called again; the messages that tell the engine so."""
        with self._lock:
            return [Abort(request_id=each) for each in request_ids if self._sinks.pop(each, None) is not None]

    def route(self, message: Reply | EngineStats) -> None:
        """Hand one message to whoever waits for it; a request that has ended is forgotten."""
        if isinstance(message, EngineStats):
            self.latest_stats = message
            with self._lock:
                stats_sink = self._stats_sinks.pop(message.query_id, None)
            if stats_sink is not None:
                stats_sink(message)
            return
        is_last = isinstance(message, Rejected | Failed) or (
            isinstance(message, TokenOutput) and message.finish_reason is not None
        )
        with self._lock:
            find = self._sinks.pop if is_last else self._sinks.get
            sink = find(message.request_id, None)
        if sink is not None:
            sink(message)

    def forget_all(self) -> dict[str, Callable[[Failed], None]]:
        """The engine is gone: who waited for it, by request or query."""
        with self._lock:
            lost: dict[str, Callable[[Failed], None]] = {**self._sinks, **self._stats_sinks}
            self._sinks, self._stats_sinks = {}, {}
            self.latest_stats = EngineStats()
        return lost
