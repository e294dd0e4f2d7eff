"""Signals that come before there is a server to end."""

import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class EarlySignals:
    """Keeps SIGINT and SIGTERM until a server takes them: it then ends as if they had come now."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._handler: Handler | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def hand_to(self, handler: Handler) -> None:
        self._handler = handler
        for number in self._kept:
            handler(number, None)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._handler is None:
            self._kept.append(number)
        else:
            self._handler(number, frame)
