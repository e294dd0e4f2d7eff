"""A client that reads nothing is cut off; one that reads slowly, and an app that takes long, are not."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.api.transport.slow_readers import CUT, SlowReaders
from tests.virtual_time import VirtualTimeLoop

LIMIT_S = 60


def _virtual_time() -> float:
    return asyncio.get_running_loop().time()


class Call:
    """One request to an app behind SlowReaders; `read` is what its client does with each message."""

    def __init__(self, app: ASGIApp, read: Callable[[Message], Any]) -> None:
        self.num_cuts = 0
        self.num_told = 0
        self._app = SlowReaders(app, limit_s=LIMIT_S, on_cut=self._tell, clock=_virtual_time)
        self._read = read

    def run(self) -> float:
        """The seconds that it took."""
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(self._call())
            return runner.get_loop().time()

    async def _call(self) -> None:
        scope = {"type": "http", "state": {"request_id": "r"}, "extensions": {CUT: self._cut}}
        await self._app(scope, asyncio.Event().wait, self._read)  # type: ignore[arg-type]

    def _cut(self) -> None:
        self.num_cuts += 1

    def _tell(self) -> None:
        self.num_told += 1


async def send_ten(scope: Scope, receive: Receive, send: Send) -> None:
    for _ in range(10):
        await send({"type": "http.response.body"})


async def read_slowly(message: Message) -> None:
    await asyncio.sleep(0.95 * LIMIT_S)


def test_client_that_reads_slowly_gets_everything() -> None:
    call = Call(send_ten, read_slowly)
    assert call.run() == pytest.approx(9.5 * LIMIT_S)
    assert (call.num_told, call.num_cuts) == (0, 0)


def test_client_that_reads_nothing_more_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    num_read = 0

    async def read_three(message: Message) -> None:
        nonlocal num_read
        num_read += 1
        if num_read > 3:
            await asyncio.Event().wait()

    call = Call(send_ten, read_three)
    assert call.run() == pytest.approx(LIMIT_S)
    assert (num_read, call.num_told, call.num_cuts) == (4, 1, 1)
    assert "request r is aborted: its client has read nothing for 60 s" in caplog.text


def test_app_may_take_as_long_as_it_likes() -> None:
    async def compute(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start"})
        await asyncio.sleep(50 * LIMIT_S)
        await send({"type": "http.response.body"})

    async def read(message: Message) -> None:
        pass

    call = Call(compute, read)
    call.run()
    assert (call.num_told, call.num_cuts) == (0, 0)


def test_message_that_could_not_be_sent_is_under_way_no_more() -> None:
    async def go_on(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(OSError, match="not now"):
            await send({"type": "http.response.body"})
        await asyncio.sleep(50 * LIMIT_S)

    async def fail(message: Message) -> None:
        raise OSError("not now")

    call = Call(go_on, fail)
    assert call.run() == pytest.approx(50 * LIMIT_S)
    assert (call.num_told, call.num_cuts) == (0, 0)


def test_timeout_of_the_app_itself_is_not_swallowed() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        Call(fail, read_slowly).run()
