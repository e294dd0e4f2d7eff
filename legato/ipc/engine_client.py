"""What the API process asks of an engine, in this process or another: requests in, answers to who asked."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from legato.ipc.messages import AddRequest, EngineStats, Ready
from legato.ipc.prediction.first_token import FirstToken
from legato.ipc.reply_router import Sink, StatsSink


class EngineStage(StrEnum):
    """Where an engine is in its life, as `/ready` shows it."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Where an engine is, and how it got there.

    detail     the last stage of the start that is done, or why the engine is gone
    is_second  another engine has worked before this one
    """

    stage: EngineStage
    detail: str = ""
    is_second: bool = False


class EngineClient(Protocol):
    """Whoever hands requests to an engine and answers to those who asked."""

    @property
    def status(self) -> EngineStatus: ...

    @property
    def ready(self) -> Ready | None:
        """What the engine can take, while it waits for work."""

    @property
    def latest_stats(self) -> EngineStats: ...

    def start(self) -> None:
        """Start the engine, once; returns at once."""

    def wait_ready(self, timeout_s: float) -> Ready:
        """Sleep until the engine waits for work. Raises NotReadyError when it will not, or not in time."""
        ...

    def when_ready(self) -> "Future[Ready]":
        """What wait_ready() ends with, when nothing limits its time."""
        ...

    def submit(self, requests: Sequence[AddRequest], sink: Sink) -> None:
        """Hand over requests together; all that is said about them goes to `sink`, from another thread.

        Raises NotReadyError when there is no engine to take them, RequestError when they cannot be sent.
        """

    def abort(self, request_ids: Iterable[str], last_word: Sink | None = None) -> None:
        """Nobody waits for these; their sink is not called again. Unknown ids have ended already.

        last_word  is given an Aborted of each that runs, with its course, unless the engine dies before
        """

    def query_stats(self, sink: StatsSink) -> None:
        """Ask for statistics with the ledger of each request. Raises NotReadyError."""

    def first_token(
        self, token_ids: Sequence[int], cache_salt: str = "", tenant: str = "", limit_s: float = math.inf
    ) -> FirstToken | None:
        """When a prompt that came now would have its first token; None where that cannot be told.

        limit_s  a wait that is too long: the answer has when a prompt would not wait so long
        """

    @property
    def num_pending(self) -> int:
        """Requests that have not ended."""

    def retry_after_s(self) -> float:
        """When a part of the queue will have ended, at the rate of the last ends."""
        ...

    @property
    def is_draining(self) -> bool: ...

    def drain(self) -> None:
        """Take no more requests; what runs goes on."""

    def close(self) -> None:
        """End the engine; what still runs fails."""
