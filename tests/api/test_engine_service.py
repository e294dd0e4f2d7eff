"""A service whose engine is opened once, whoever asks for it, and closed whatever else goes on."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from legato.api.engine_service import EngineService
from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import ClosedError, EngineDiedError, ModelError, OverloadedError
from legato.ipc.engine_client import EngineStage, EngineStatus
from legato.ipc.messages import EngineStats, Failed, Ready
from legato.ipc.reply_router import StatsSink

READY = Ready(
    max_model_len=64,
    vocab_size=256,
    eos_ids=[],
    num_pages=8,
    page_size=16,
    numeric_mode="fake",
    scheduler=SchedulerConfig(
        max_num_seqs=4,
        max_step_tokens=64,
        mixed_prefill_tokens=16,
        long_prefill_tokens=None,
        max_model_len=64,
        max_queued=3,
        max_queued_tokens=100,
    ),
)


class FakeClient:
    """What the service asks of an EngineClient; a query is answered by `reply`."""

    def __init__(self) -> None:
        self.status = EngineStatus(EngineStage.READY)
        self.is_draining = False
        self.num_pending = 0
        self.ready = READY
        self.latest_stats = EngineStats()
        self.reply: EngineStats | Failed = EngineStats()
        self.closed_in: list[threading.Thread] = []

    def query_stats(self, sink: StatsSink) -> None:
        sink(self.reply)

    def retry_after_s(self) -> float:
        return 2.5

    def close(self) -> None:
        self.closed_in.append(threading.current_thread())


class Opener:
    """In place of open_llm: opens when it may, and remembers in which threads."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.may_open = threading.Event()
        self.has_begun = threading.Event()
        self.threads: list[threading.Thread] = []
        self.error: Exception | None = None
        self.news: list[str] = []  # of its download

    def __call__(self, config: EngineConfig, report: Callable[[str], None]) -> Any:
        for line in self.news:
            report(line)
        self.threads.append(threading.current_thread())
        self.has_begun.set()
        assert self.may_open.wait(20)
        if self.error is not None:
            raise self.error

        async def wait_ready() -> None:
            pass

        llm = SimpleNamespace(client=self.client, wait_ready=wait_ready, close=self.client.close)
        return SimpleNamespace(llm=llm)


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Opener:
    opener = Opener()
    monkeypatch.setattr("legato.api.engine_service.open_llm", opener)
    return opener


@pytest.fixture
def service() -> EngineService:
    return EngineService(EngineConfig(model="any"))


def test_all_who_wait_share_one_thread_and_who_leaves_stops_nobody(
    service: EngineService, opener: Opener
) -> None:
    async def main() -> None:
        starts = [asyncio.create_task(service.start()) for _ in range(20)]
        await asyncio.sleep(0)
        starts[0].cancel()
        await asyncio.sleep(0)
        opener.may_open.set()
        await asyncio.gather(*starts[1:])

    asyncio.run(main())
    [thread] = opener.threads
    assert thread.daemon
    assert thread.name == "model-opener"


def test_fault_of_the_opening_is_a_failed_service_for_good(service: EngineService, opener: Opener) -> None:
    opener.error = ZeroDivisionError("a planted fault")
    opener.may_open.set()
    for _ in range(2):
        with pytest.raises(ModelError, match="a planted fault"):
            asyncio.run(service.start())
    assert len(opener.threads) == 1
    assert service.state().stage == "failed"


def test_who_waits_is_told_of_a_download(service: EngineService, opener: Opener) -> None:
    opener.news = ["downloading a.gguf", "a.gguf: 40%, 42 of 105 MB"]
    service.open()
    assert opener.has_begun.wait(20)
    state = service.state()
    assert (state.stage, state.is_alive, state.reason) == ("opening", True, "a.gguf: 40%, 42 of 105 MB")
    opener.may_open.set()
    asyncio.run(service.start())
    assert service.state().stage == "ready"


def test_calls_that_wait_for_the_engine_are_bounded(opener: Opener) -> None:
    service = EngineService(EngineConfig(model="any", max_num_queued_reqs=3))

    async def main() -> None:
        held = [asyncio.create_task(service.enter()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="3 requests wait for the engine to be loaded"):
            await service.enter()
        leaver = held.pop()
        leaver.cancel()
        await asyncio.wait([leaver])
        held.append(asyncio.create_task(service.enter()))
        await asyncio.sleep(0)
        opener.may_open.set()
        await asyncio.gather(*held)
        for _ in range(9):
            await service.enter()  # one that is loaded holds nobody

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["drain", "close"])
def test_calls_that_wait_are_told_of_the_end_at_once(
    service: EngineService, opener: Opener, ends: str
) -> None:
    async def main() -> None:
        held = [asyncio.create_task(service.enter()) for _ in range(3)]
        await asyncio.to_thread(opener.has_begun.wait, 20)
        service.drain() if ends == "drain" else await service.close()
        for error in await asyncio.gather(*held, return_exceptions=True):
            assert isinstance(error, ClosedError)
        with pytest.raises(ClosedError, match="the server is shutting down"):
            await service.enter()

    asyncio.run(main())
    opener.may_open.set()


def test_load_sleeps_until_the_engine_takes_requests_or_never_will(opener: Opener) -> None:
    opener.may_open.set()
    service = EngineService(EngineConfig(model="any"))
    service.load()
    assert (service.state().stage, service.fault) == ("ready", None)

    opener.error = ModelError("the file is gone")
    broken = EngineService(EngineConfig(model="any"))
    with pytest.raises(ModelError, match="the file is gone"):
        broken.load()
    assert broken.fault == "the file is gone"


def test_close_has_a_thread_of_its_own(service: EngineService, opener: Opener) -> None:
    opener.may_open.set()
    asyncio.run(service.start())
    asyncio.run(service.close())
    [thread] = opener.client.closed_in
    assert thread.daemon
    assert thread.name == "engine-closer"


def test_service_closed_while_it_is_opened_leaves_no_engine(service: EngineService, opener: Opener) -> None:
    async def main() -> None:
        start = asyncio.create_task(service.start())
        await asyncio.sleep(0)
        assert opener.has_begun.wait(20)
        await service.close()  # waits for nobody
        assert opener.client.closed_in == []
        opener.may_open.set()
        await start

    asyncio.run(main())
    assert opener.client.closed_in == opener.threads


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ("", "loading, done: nothing yet"),
        ("weights", "loading, done: weights"),
        ("starting again: the engine process has ended", "starting again: the engine process has ended"),
    ],
)
def test_who_waits_is_told_how_far_the_start_is_or_why_there_is_one(
    service: EngineService, opener: Opener, detail: str, reason: str
) -> None:
    opener.may_open.set()
    asyncio.run(service.start())
    opener.client.status = EngineStatus(EngineStage.LOADING, detail)
    assert service.state().reason == reason


@pytest.mark.parametrize(
    ("stage", "error"), [(EngineStage.LOADING, EngineDiedError), (EngineStage.CLOSED, ClosedError)]
)
def test_query_that_the_engine_did_not_live_to_answer_fails(
    service: EngineService, opener: Opener, stage: EngineStage, error: type[Exception]
) -> None:
    opener.may_open.set()
    asyncio.run(service.start())
    assert asyncio.run(service.stats()) == EngineStats()
    opener.client.reply, opener.client.status = (
        Failed(request_id="stats-1", error="gone"),
        EngineStatus(stage),
    )
    with pytest.raises(error, match="gone"):
        asyncio.run(service.stats())


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (EngineStats(), None),
        (EngineStats(running=4, waiting=2, waiting_tokens=99), None),
        (EngineStats(running=1, waiting=5, waiting_tokens=5), None),  # three of them find a row at once
        (EngineStats(running=1, waiting=2, waiting_tokens=200), None),  # so do all of these
        (EngineStats(running=4, waiting=3), "3 requests wait, the limit is 3"),
        (
            EngineStats(running=4, waiting=1, waiting_tokens=100),
            "prompts of 100 tokens wait, the limit is 100",
        ),
    ],
)
def test_engine_is_not_ready_where_the_next_request_would_be_refused(
    service: EngineService, opener: Opener, stats: EngineStats, reason: str | None
) -> None:
    opener.may_open.set()
    asyncio.run(service.start())
    opener.client.latest_stats = stats

    state = service.state()

    assert state.is_alive
    assert state.is_ready == (reason is None)
    assert state.stage == ("ready" if reason is None else "overloaded")
    assert state.reason == (reason or "")
    assert reason is None or state.retry_after_s == 2.5


@pytest.mark.parametrize(("is_second", "stage"), [(False, "loading"), (True, "respawning")])
def test_engine_that_takes_the_place_of_another_is_respawning(
    service: EngineService, opener: Opener, is_second: bool, stage: str
) -> None:
    opener.may_open.set()
    asyncio.run(service.start())
    opener.client.status = EngineStatus(EngineStage.LOADING, "weights", is_second=is_second)
    state = service.state()
    assert (state.stage, state.progress, state.is_ready, state.is_alive) == (stage, 0.8, False, True)


def test_service_that_drains_is_alive_and_not_ready(service: EngineService, opener: Opener) -> None:
    opener.may_open.set()
    asyncio.run(service.start())
    opener.client.is_draining = True
    state = service.state()
    assert (state.stage, state.is_ready, state.is_alive) == ("draining", False, True)
