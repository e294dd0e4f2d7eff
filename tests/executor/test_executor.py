"""Executors promise outputs; the one with a thread computes while the caller goes on."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError

import pytest

from legato.core.plan import StepOutput
from legato.executor.executor import InlineExecutor, NoBoard, ThreadExecutor
from legato.executor.forward_batch import BatchBuilder, ForwardBatch
from tests.executor.plans import make_chunk, make_plan

PLANS = [make_plan(make_chunk("a", 0, range(step, step + 1), prompt=[1]), step=step) for step in range(3)]


class FakeRunner:
    """Stands in for ModelRunner: computes when it may, and remembers where and in which order."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_run = threading.Event()
        self.steps: list[int] = []
        self.threads: set[str] = set()
        self.failure: Exception | None = None

    def run(self, batch: ForwardBatch) -> StepOutput:
        self.has_begun.set()
        assert self.may_run.wait(timeout=10)
        if self.failure is not None:
            raise self.failure
        self.steps.append(batch.step)
        self.threads.add(threading.current_thread().name)
        return StepOutput(batch.step, {"a": batch.step})


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def builder() -> BatchBuilder:
    return BatchBuilder(num_rows=1, max_pages=1)


@pytest.fixture
def threaded(builder: BatchBuilder, runner: FakeRunner) -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor(builder, runner, NoBoard())  # type: ignore[arg-type]
    yield executor
    runner.may_run.set()
    executor.close()


def test_launch_returns_while_the_step_computes(threaded: ThreadExecutor, runner: FakeRunner) -> None:
    futures = [threaded.launch(plan) for plan in PLANS]
    assert not any(future.done() for future in futures)
    runner.may_run.set()
    assert [future.result(timeout=10).token_ids["a"] for future in futures] == [0, 1, 2]
    assert runner.steps == [0, 1, 2]
    assert threading.current_thread().name not in runner.threads


def test_failure_of_a_step_comes_out_of_its_promise(threaded: ThreadExecutor, runner: FakeRunner) -> None:
    runner.failure = MemoryError("no room")
    runner.may_run.set()
    with pytest.raises(MemoryError, match="no room"):
        threaded.launch(PLANS[0]).result(timeout=10)


def test_nothing_is_computed_after_a_step_that_failed(threaded: ThreadExecutor, runner: FakeRunner) -> None:
    runner.failure = MemoryError("no room")
    first, second = threaded.launch(PLANS[0]), threaded.launch(PLANS[1])
    runner.may_run.set()
    for future in (first, second):
        with pytest.raises(MemoryError, match="no room"):
            future.result(timeout=10)
    runner.failure = None
    with pytest.raises(MemoryError, match="no room"):
        threaded.launch(PLANS[2]).result(timeout=10)
    assert runner.steps == []


def test_closing_drops_what_has_not_begun(builder: BatchBuilder, runner: FakeRunner) -> None:
    executor = ThreadExecutor(builder, runner, NoBoard())  # type: ignore[arg-type]
    first, *others = [executor.launch(plan) for plan in PLANS]
    assert runner.has_begun.wait(timeout=10)
    closing = threading.Thread(target=executor.close)
    closing.start()
    for future in others:
        with pytest.raises(CancelledError):
            future.result(timeout=10)
    runner.may_run.set()
    closing.join(timeout=10)
    assert first.result(timeout=0).step == 0
    assert runner.steps == [0]


def test_inline_executor_computes_in_the_calling_thread(builder: BatchBuilder, runner: FakeRunner) -> None:
    runner.may_run.set()
    executor = InlineExecutor(builder, runner, NoBoard())  # type: ignore[arg-type]
    assert executor.launch(PLANS[1]).result(timeout=0) == StepOutput(1, {"a": 1})
    assert runner.threads == {threading.current_thread().name}
    executor.close()


def test_board_is_told_of_each_step_while_it_computes(builder: BatchBuilder, runner: FakeRunner) -> None:
    told: list[object] = []

    class Board:
        def begin(self, request_ids: Sequence[str]) -> None:
            told.append(list(request_ids))

        def end(self) -> None:
            told.append(runner.steps.copy())

    runner.may_run.set()
    InlineExecutor(builder, runner, Board()).launch(PLANS[2])  # type: ignore[arg-type]
    assert told == [["a"], [2]]
