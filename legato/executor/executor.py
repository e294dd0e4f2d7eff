"""Executors take plans and promise outputs, in the calling thread or in one of their own."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from legato.core.plan import StepOutput, StepPlan
from legato.executor.forward_batch import BatchBuilder, ForwardBatch
from legato.executor.model_runner import ModelRunner


class Executor(Protocol):
    """Launches steps; they compute in the order of their launch."""

    def launch(self, plan: StepPlan) -> "Future[StepOutput]": ...

    def close(self) -> None: ...


class StepBoard(Protocol):
    """Told which step computes, by the thread that computes it."""

    def pulse(self) -> memoryview:
        """[1] uint64: counted up whenever a part of a step is done."""
        ...

    def begin(self, request_ids: Sequence[str]) -> None: ...

    def end(self) -> None: ...


class NoBoard:
    """A StepBoard that nobody looks at."""

    def pulse(self) -> memoryview:
        return memoryview(bytearray(8)).cast("Q")

    def begin(self, request_ids: Sequence[str]) -> None: ...

    def end(self) -> None: ...


class InlineExecutor:
    """Computes in the calling thread: launch() returns when the step is done."""

    def __init__(self, builder: BatchBuilder, runner: ModelRunner, board: StepBoard) -> None:
        self._builder = builder
        self._runner = runner
        self._board = board

    def launch(self, plan: StepPlan) -> "Future[StepOutput]":
        future: Future[StepOutput] = Future()
        future.set_result(_compute(self._runner, self._board, plan, self._builder.build(plan)))
        return future

    def close(self) -> None:
        """Nothing runs between two calls."""


class ThreadExecutor:
    """Computes in a thread of its own: inputs are prepared here while the step before still runs there.

    After a step that has failed none is computed: it would read what that one has not written.
    """

    def __init__(self, builder: BatchBuilder, runner: ModelRunner, board: StepBoard) -> None:
        self._builder = builder
        self._runner = runner
        self._board = board
        self._failure: BaseException | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forward")

    def launch(self, plan: StepPlan) -> "Future[StepOutput]":
        return self._thread.submit(self._compute, plan, self._builder.build(plan))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _compute(self, plan: StepPlan, batch: ForwardBatch) -> StepOutput:
        if self._failure is not None:
            raise self._failure
        try:
            return _compute(self._runner, self._board, plan, batch)
        except BaseException as failure:
            self._failure = failure
            raise


def _compute(runner: ModelRunner, board: StepBoard, plan: StepPlan, batch: ForwardBatch) -> StepOutput:
    board.begin([chunk.request_id for chunk in plan.chunks])
    output = runner.run(batch)
    board.end()
    return output
