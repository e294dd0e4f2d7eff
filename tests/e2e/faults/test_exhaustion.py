"""Memory, sockets and disks that give out: every answer is that of an undisturbed run, and ends once."""

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from legato.core.config import EngineConfig
from legato.core.sampling_params import SamplingParams
from legato.ipc.channel import Channel, ChannelClosedError
from legato.ipc.client import ProcessClient
from legato.ipc.messages import Accepted, AddRequest, FromEngine, TokenOutput
from legato.ipc.progress_board import ProgressBoard
from legato.ipc.reply_router import Reply
from legato.ipc.supervisor import EngineProcess, RestartBudget, start_engine
from tests.e2e.conftest import end_server, start_server, wait_until
from tests.soak.vitals import engine_pid

NUM_REQUESTS = 8


class Engines:
    """Starts an engine of one module, and after that sound ones."""

    def __init__(self, first: str = "legato.engine") -> None:
        self.started: list[EngineProcess] = []
        self._modules = itertools.chain([first], itertools.repeat("legato.engine"))

    def __call__(self) -> EngineProcess:
        self.started.append(start_engine(next(self._modules)))
        return self.started[-1]


def request(number: int, prompt_len: int, max_tokens: int) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=1, ignore_eos=True)
    ids = [(number * 7 + place) % 250 + 1 for place in range(prompt_len)]
    return AddRequest(request_id=f"r{number}", token_ids=ids, params=params, seed=number)


def tokens_of(client: ProcessClient, requests: list[AddRequest]) -> dict[str, list[int]]:
    """The tokens of each request; fails unless each ends exactly once, and in the right order."""
    replies: SimpleQueue[Reply] = SimpleQueue()
    for each in requests:
        client.submit([each], replies.put)
    return collect(replies, requests)


def collect(replies: "SimpleQueue[Reply]", requests: list[AddRequest]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {each.request_id: [] for each in requests}
    unfinished = set(tokens)
    while unfinished:
        reply = replies.get(timeout=60)
        if isinstance(reply, Accepted):
            continue
        assert isinstance(reply, TokenOutput), reply
        assert reply.request_id in unfinished
        assert reply.index == len(tokens[reply.request_id])
        tokens[reply.request_id] += reply.token_ids
        if reply.finish_reason is not None:
            unfinished.remove(reply.request_id)
    assert replies.empty()
    return tokens


def open_client(model: Path, engines: Engines, **settings: Any) -> Iterator[ProcessClient]:
    config = EngineConfig(model=str(model), num_pages=30, max_num_seqs=4, **settings)
    client = ProcessClient(config, spawn=engines, budget=RestartBudget([0.0] * 3))
    client.start()
    yield client
    client.close()


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    return [request(number, 20 + 9 * number, 12 + number) for number in range(NUM_REQUESTS)]


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Path, requests: list[AddRequest]) -> dict[str, list[int]]:
    [tokens] = [tokens_of(client, requests) for client in open_client(tiny_model, Engines())]
    return tokens


@pytest.mark.parametrize("lost", ["recording", "model"])
def test_what_is_gone_when_an_engine_is_replaced_costs_nobody_a_token(
    tmp_path: Path,
    tiny_model: Path,
    requests: list[AddRequest],
    undisturbed: dict[str, list[int]],
    lost: str,
) -> None:
    """A recording for good, a model for a while."""
    model, recordings, away = tmp_path / "model", tmp_path / "recordings", tmp_path / "away"
    shutil.copytree(tiny_model, model)
    recordings.mkdir()
    folder = recordings if lost == "recording" else model
    engines, is_lost = Engines(), threading.Event()
    replies: SimpleQueue[Reply] = SimpleQueue()

    def keep(reply: Reply) -> None:
        replies.put(reply)
        if isinstance(reply, TokenOutput) and not is_lost.is_set():
            is_lost.set()
            folder.rename(away)
            engines.started[0].process.kill()

    for client in open_client(model, engines, record=str(recordings / "file")):
        client.submit(requests, keep)
        if lost == "model":
            wait_until(lambda: len(engines.started) > 2)
            away.rename(folder)
        assert collect(replies, requests) == undisturbed
        assert client.num_pending == 0


SHORT = [("page", 9), ("send", 12)]
NUM_PAGES_TAKEN = 15  # by these requests, one after another
FULL = [("page", n) for n in range(1, NUM_PAGES_TAKEN + 1)]
FULL += [(kind, n) for kind in ("step", "plan", "send") for n in range(1, 31)]
FULL += [("add", n) for n in range(1, NUM_REQUESTS + 1)]


@pytest.mark.parametrize(
    ("kind", "number"),
    [*SHORT, *(pytest.param(*case, marks=pytest.mark.slow) for case in FULL if case not in SHORT)],
)
def test_what_gives_out_once_costs_nobody_a_token(
    tiny_model: Path,
    requests: list[AddRequest],
    undisturbed: dict[str, list[int]],
    kind: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEGATO_TEST_EXHAUST", f"{kind}:{number}")
    engines = Engines("tests.e2e.faults.exhausted_engine")
    for client in open_client(tiny_model, engines):
        assert tokens_of(client, requests) == undisturbed
        assert client.num_pending == 0
    assert len(engines.started) == 2


class FailingChannel:
    """The client's end of a channel, whose n-th send fails as if the system had no memory for it."""

    def __init__(self, channel: Channel[FromEngine], number: int) -> None:
        self._channel = channel
        self._sends_left = number

    def send_frame(self, frame: bytes) -> None:
        self._sends_left -= 1
        if self._sends_left == 0:
            raise ChannelClosedError
        self._channel.send_frame(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


@pytest.mark.parametrize(
    "number", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 5, 7, 9))]
)
def test_request_that_cannot_be_sent_goes_to_the_next_engine(
    tiny_model: Path, requests: list[AddRequest], undisturbed: dict[str, list[int]], number: int
) -> None:
    class FailingEngines(Engines):
        def __call__(self) -> EngineProcess:
            engine = super().__call__()
            if len(self.started) > 1:
                return engine
            return replace(engine, channel=cast("Any", FailingChannel(engine.channel, number)))

    engines = FailingEngines()
    for client in open_client(tiny_model, engines):
        client.wait_ready(60)  # from here on each request is sent for itself
        assert tokens_of(client, requests) == undisturbed
    assert len(engines.started) == 2


@pytest.mark.slow
def test_both_sockets_may_be_full_at_once(tiny_model: Path) -> None:
    """Nobody reads the answers, so the engine stops reading requests; then all goes on, with nothing lost."""
    engines, gate = Engines(), threading.Event()
    requests = [request(number, 40, 12 if number < 300 else 1) for number in range(900)]
    replies: SimpleQueue[Reply] = SimpleQueue()

    def hold_up(reply: Reply) -> None:
        gate.wait()
        replies.put(reply)

    for client in open_client(tiny_model, engines):
        alone = tokens_of(client, requests[:3])
        try:
            for part in (requests[:300], requests[300:]):
                for each in part:
                    client.submit([each], hold_up)
                wait_until(partial(is_still, engines.started[0].board), timeout_s=60)
            assert client._outbox is not None
            assert client._outbox.qsize() > 0, "the engine has read everything"
        finally:
            gate.set()
        tokens = collect(replies, requests)
    assert {name: tokens[name] for name in alone} == alone
    assert len(engines.started) == 1


def is_still(board: ProgressBoard) -> bool:
    """Whether nothing is computed for a second."""
    before = board.read().ticks
    time.sleep(1)
    return board.read().ticks == before


def test_full_disk_and_a_cache_that_cannot_be_written_end_nothing(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    monkeypatch.setenv("LEGATO_PACKED_FOLDER", str(full / "packed"))
    server = start_server(tmp_path, tiny_model, app=None, log=full)
    try:
        body = {"prompt": "a", "max_tokens": 4, "temperature": 0}
        first = server.post("/v1/completions", body)
        assert first[0] == 200
        pid = engine_pid(server.process.pid)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert server.post("/v1/completions", body)[1]["choices"] == first[1]["choices"]
    finally:
        end_server(server)
    assert server.process.returncode == 0
