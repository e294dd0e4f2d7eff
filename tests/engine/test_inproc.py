"""An engine in a thread: what its clients hear when it ends."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from legato.core.config import EngineConfig
from legato.core.errors import ClosedError, NotReadyError
from legato.core.sampling_params import SamplingParams
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.ipc.engine_client import EngineStage
from legato.ipc.messages import Accepted, AddRequest, EngineStats, Failed, TokenOutput
from legato.ipc.reply_router import Reply

Replies = SimpleQueue[Reply]


@pytest.fixture
def client(tiny_model: Path) -> Iterator[InprocClient]:
    engine = load_engine(EngineConfig(model=str(tiny_model), num_pages=64), lambda *_: None)
    client = InprocClient(engine)
    client.start()
    yield client
    client.close()


def request(request_id: str, max_tokens: int = 400) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=request_id, token_ids=[1, 2, 3], params=params, seed=0)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def test_answers_come_to_the_end(client: InprocClient) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("a", max_tokens=3)], replies.put)
    assert replies.get(timeout=20) == Accepted(request_id="a")
    tokens = [replies.get(timeout=20) for _ in range(3)]
    assert [reply.index for reply in tokens if isinstance(reply, TokenOutput)] == [0, 1, 2]


def test_abort_ends_the_request_within_two_steps(client: InprocClient) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("a")], replies.put)
    for _ in range(5):
        replies.get(timeout=20)
    client.abort(["a"])
    step = client.latest_stats.step
    wait_until(lambda: client.latest_stats.running == 0)
    assert client.latest_stats.step <= step + 2
    assert client.latest_stats.pages_held == 0


def test_ledgers_are_told_when_asked(client: InprocClient) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("a")], replies.put)
    replies.get(timeout=20)
    answers: SimpleQueue[EngineStats] = SimpleQueue()
    client.query_stats(answers.put)
    assert [each.request_id for each in answers.get(timeout=20).requests] == ["a"]


def test_closing_fails_what_runs_and_takes_nothing_more(client: InprocClient) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("a")], replies.put)
    replies.get(timeout=20)
    client.close()
    assert client.status.stage is EngineStage.CLOSED
    while not isinstance(reply := replies.get(timeout=20), Failed):
        pass
    assert reply == Failed(request_id="a", error="the engine has ended: it was closed")
    with pytest.raises(NotReadyError, match="closed"):
        client.submit([request("b")], replies.put)
    with pytest.raises(ClosedError, match="closed"):
        client.wait_ready(1)
    with pytest.raises(ClosedError, match="closed"):
        client.query_stats(lambda _: None)
    client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_fault_in_the_engine_fails_what_runs(client: InprocClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> None:
        raise ZeroDivisionError("a planted fault")

    monkeypatch.setattr(client._core, "step", break_down)
    replies: Replies = SimpleQueue()
    client.submit([request("a")], replies.put)
    reply = replies.get(timeout=20)
    assert isinstance(reply, Failed)
    assert "a planted fault" in reply.error
    assert client.status.stage is EngineStage.FAILED
    with pytest.raises(NotReadyError, match="a planted fault"):
        client.submit([request("b")], replies.put)
