"""The engine's loop: messages in, core.step(), messages out. An idle engine sleeps on its socket."""

import logging
from collections.abc import Sequence
from typing import Protocol

from legato.ipc.channel import Channel, ChannelClosedError
from legato.ipc.messages import (
    Abort,
    Aborted,
    Accepted,
    AddRequest,
    EngineStats,
    Failed,
    FromEngine,
    Rejected,
    Shutdown,
    StatsQuery,
    ToEngine,
    TokenOutput,
)

logger = logging.getLogger(__name__)

IDLE_CHECK_AFTER_S = 1.0  # the check takes milliseconds, which the next request should not wait for


class EngineCore(Protocol):
    """What the loop drives."""

    @property
    def has_work(self) -> bool: ...

    @property
    def idle_s(self) -> float:
        """With work, how long the next step may wait for messages; 0 unless it would find nothing to do."""
        ...

    def add(self, message: AddRequest) -> Accepted | Rejected: ...

    def abort(self, request_id: str) -> Aborted: ...

    def step(self) -> Sequence[TokenOutput | Failed]: ...

    def stats(self, query_id: str = "") -> EngineStats: ...

    def check_integrity(self) -> None: ...


def run(core: EngineCore, channel: Channel[ToEngine], early: Sequence[ToEngine] = ()) -> str:
    """Serve until told to end, or until the API process is gone; returns the reason for the end.

    early  messages that were received already
    """
    incoming = list(early)
    try:
        while True:
            if core.has_work or incoming:
                incoming += channel.receive(timeout_s=0 if incoming else core.idle_s)
            else:
                incoming += _receive_when_idle(core, channel)
            outgoing: list[FromEngine] = []
            for message in incoming:
                if isinstance(message, Shutdown):
                    return "shutdown asked for"
                outgoing += handle(core, message)
            incoming.clear()
            if outgoing:  # before the step, which may take long
                channel.send(outgoing)
            if core.has_work:
                channel.send([*core.step(), core.stats()])
    except ChannelClosedError:
        return "the API process is gone"


def _receive_when_idle(core: EngineCore, channel: Channel[ToEngine]) -> list[ToEngine]:
    """Sleep until a message comes; after a moment without one, see that no page was lost."""
    messages = channel.receive(timeout_s=IDLE_CHECK_AFTER_S)
    if messages:
        return messages
    core.check_integrity()
    return channel.receive()


def handle(core: EngineCore, message: ToEngine) -> list[Accepted | Rejected | Aborted | EngineStats]:
    """Let the core act on one message; what it answers at once."""
    match message:
        case AddRequest():
            return [core.add(message)]
        case Abort():
            return [core.abort(message.request_id), core.stats()]
        case StatsQuery():
            return [core.stats(message.query_id)]
        case _:
            raise ValueError(f"{type(message).__name__} has no place in a running engine")
