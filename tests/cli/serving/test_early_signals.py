"""Signals that come before the server is there are not lost, and do not end the process in mid-import."""

import signal
from collections.abc import Iterator

import pytest

from legato.cli.serving.early_signals import EarlySignals


@pytest.fixture(autouse=True)
def old_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_server_hears_of_signals_before_and_after_it_is_there() -> None:
    heard: list[int] = []
    signals = EarlySignals()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert heard == []
    signals.hand_to(lambda number, _: heard.append(number))
    assert heard == [signal.SIGINT, signal.SIGTERM]
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]
