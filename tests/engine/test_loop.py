"""The loop over a real socket pair and a fake core: what comes before what, and how it ends."""

import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

import legato.engine.loop as loop
from legato.core.config import EngineConfig
from legato.core.sampling_params import SamplingParams
from legato.ipc.channel import Channel, client_end, engine_end
from legato.ipc.messages import (
    Abort,
    Aborted,
    Accepted,
    AddRequest,
    EngineStats,
    Failed,
    FromEngine,
    Shutdown,
    Start,
    StatsQuery,
    ToEngine,
    TokenOutput,
)


class FakeCore:
    """Implements EngineCore: works for two steps an added request, and keeps a diary."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.steps_left = 0
        self.before_step: Callable[[], None] = lambda: None
        self.on_check: Callable[[], None] = lambda: None

    @property
    def has_work(self) -> bool:
        return self.steps_left > 0

    @property
    def idle_s(self) -> float:
        return 0.0

    def add(self, message: AddRequest) -> Accepted:
        self.diary.append(f"add {message.request_id}")
        self.steps_left += 2
        return Accepted(request_id=message.request_id)

    def abort(self, request_id: str) -> Aborted:
        self.diary.append(f"abort {request_id}")
        return Aborted(request_id=request_id)

    def step(self) -> Sequence[TokenOutput | Failed]:
        self.before_step()
        self.diary.append("step")
        self.steps_left -= 1
        return [TokenOutput(request_id="a", index=0, token_ids=[5])]

    def stats(self, query_id: str = "") -> EngineStats:
        return EngineStats(query_id=query_id, step=len(self.diary))

    def check_integrity(self) -> None:
        self.diary.append("check")
        self.on_check()


class Ends:
    """Both ends of the boundary."""

    def __init__(self) -> None:
        self.our_socket, theirs = socket.socketpair()
        self.client: Channel[FromEngine] = client_end(self.our_socket)
        self.engine: Channel[ToEngine] = engine_end(theirs)

    def stop_writing(self) -> None:
        """The engine sees the end of the stream; what it sends can still be read."""
        self.our_socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.client.close()
        self.engine.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


def request(request_id: str) -> AddRequest:
    return AddRequest(request_id=request_id, token_ids=[1], params=SamplingParams(), seed=0)


def test_all_messages_are_handled_and_answered_before_the_step(ends: Ends, core: FakeCore) -> None:
    answered: list[FromEngine] = []
    core.before_step = lambda: answered.extend(ends.client.receive())
    ends.client.send([request("a"), request("b")])
    ends.client.send([Abort(request_id="z"), request("c")])
    ends.stop_writing()
    assert loop.run(core, ends.engine) == "the API process is gone"
    assert core.diary == ["add a", "add b", "abort z", "add c", "step"]
    assert [type(answer) for answer in answered] == [Accepted, Accepted, Aborted, EngineStats, Accepted]
    assert ends.client.receive() == [
        TokenOutput(request_id="a", index=0, token_ids=[5]),
        EngineStats(step=5),
    ]


def test_messages_are_looked_for_between_two_steps(ends: Ends, core: FakeCore) -> None:
    late = [request("b")]

    def send_late() -> None:
        if late:
            ends.client.send([late.pop()])
        else:
            ends.client.send([Shutdown()])

    core.before_step = send_late
    ends.client.send([request("a")])
    assert loop.run(core, ends.engine) == "shutdown asked for"
    assert core.diary == ["add a", "step", "add b", "step"]


def test_shutdown_ends_before_any_further_step(ends: Ends, core: FakeCore) -> None:
    ends.client.send([request("a")])
    ends.client.send([Shutdown()])
    assert loop.run(core, ends.engine) == "shutdown asked for"
    assert core.diary == ["add a"]


def test_early_messages_come_first(ends: Ends, core: FakeCore) -> None:
    ends.client.send([request("late")])
    ends.stop_writing()
    loop.run(core, ends.engine, early=[request("early")])
    assert core.diary == ["add early", "add late", "step"]


def test_client_that_is_gone_ends_the_loop(ends: Ends, core: FakeCore) -> None:
    ends.client.send([request("a")])
    ends.client.close()
    assert loop.run(core, ends.engine) == "the API process is gone"


def test_idle_core_is_checked_and_a_busy_one_is_not(
    ends: Ends, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "IDLE_CHECK_AFTER_S", 0.0)
    core.on_check = lambda: ends.client.send([Shutdown()])
    assert loop.run(core, ends.engine, early=[request("a")]) == "shutdown asked for"
    assert core.diary == ["add a", "step", "step", "check"]


def test_lost_page_ends_the_engine(ends: Ends, core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_loss() -> None:
        raise AssertionError("pages [3] belong to nobody")

    monkeypatch.setattr(loop, "IDLE_CHECK_AFTER_S", 0.0)
    core.on_check = find_loss
    with pytest.raises(AssertionError, match="belong to nobody"):
        loop.run(core, ends.engine)


def test_statistics_are_answered_with_the_name_of_the_query(core: FakeCore) -> None:
    assert loop.handle(core, StatsQuery(query_id="q")) == [EngineStats(query_id="q")]


@pytest.mark.parametrize("message", [Start(config=EngineConfig()), Shutdown()])
def test_message_that_has_no_place_in_a_running_engine(core: FakeCore, message: ToEngine) -> None:
    with pytest.raises(ValueError, match="has no place in a running engine"):
        loop.handle(core, message)
