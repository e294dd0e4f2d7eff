"""The API process's side of the boundary: requests out, answers matched by id, never by order."""

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from legato.core.config import EngineConfig
from legato.core.errors import IS_ENDING, ClosedError, NotReadyError, RequestError
from legato.ipc.channel import ChannelClosedError, encode_frame
from legato.ipc.engine_client import EngineStage, EngineStatus
from legato.ipc.messages import (
    AddRequest,
    EngineStats,
    FromEngine,
    Progress,
    Ready,
    Shutdown,
    Start,
    StartFailed,
    TokenOutput,
)
from legato.ipc.prediction.first_token import FirstToken, FirstTokenPredictor
from legato.ipc.reply_router import ReplyRouter, Sink, StatsSink
from legato.ipc.supervisor import EngineProcess, RestartBudget, Watchdog, start_engine

logger = logging.getLogger(__name__)

LOADING_LIMIT_S = 10.0  # without progress, at least: on a busy machine a process is slow to begin

Outbox = SimpleQueue[bytes | None]  # frames; None ends the writer


class ProcessClient:
    """An engine in a process of its own, started again when it dies.

    One thread reads, one writes, neither belongs to an event loop: so the client outlives any loop, and no
    caller is ever held up by an engine that is busy computing.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        spawn: Callable[[], EngineProcess] = start_engine,
        budget: RestartBudget | None = None,
    ) -> None:
        self._config = config
        self._spawn = spawn
        self._budget = budget or RestartBudget()
        self._changed = threading.Condition()  # guards everything below
        self._status = EngineStatus(EngineStage.STOPPED)
        self._ready: Ready | None = None
        self._was_ready = False
        self._is_draining = False
        self._router = ReplyRouter(FirstTokenPredictor(config))
        self._outbox: Outbox | None = None  # of the engine that runs
        self._process: EngineProcess | None = None
        self._thread: threading.Thread | None = None
        self._started_at = 0.0
        self._awaited: set[Future[Ready]] = set()  # of those that wait for the end of loading

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def ready(self) -> Ready | None:
        return self._ready

    @property
    def latest_stats(self) -> EngineStats:
        return self._router.latest_stats

    def start(self) -> None:
        with self._changed:
            if self._thread is not None or self._is_closed:
                return
            self._status = EngineStatus(EngineStage.LOADING)
            self._thread = threading.Thread(target=self._supervise, name="engine-client", daemon=True)
            self._thread.start()
        atexit.register(self.close)

    def wait_ready(self, timeout_s: float) -> Ready:
        with self._changed:
            self._changed.wait_for(lambda: self._status.stage is not EngineStage.LOADING, timeout_s)
            return self._ready_now()

    def when_ready(self) -> "Future[Ready]":
        ready: Future[Ready] = Future()
        with self._changed:
            if self._status.stage is EngineStage.LOADING:
                self._awaited.add(ready)
                ready.add_done_callback(self._awaited.discard)  # also when nobody waits any longer
            else:
                self._tell(ready)
        return ready

    def submit(self, requests: Sequence[AddRequest], sink: Sink) -> None:
        try:
            encode_frame(requests)  # here, where the fault of one caller is that caller's alone
        except ValueError as error:
            raise RequestError(f"the request cannot be sent to the engine: {error}") from error
        with self._changed:
            if self._is_draining or self._status.stage not in (EngineStage.LOADING, EngineStage.READY):
                raise self._not_ready()
            self._router.expect(requests, sink)
            self._send_unsent()

    def abort(self, request_ids: Iterable[str], last_word: Sink | None = None) -> None:
        with self._changed:
            if (aborts := self._router.forget(request_ids, last_word)) and self._outbox is not None:
                self._outbox.put(encode_frame(aborts))

    def query_stats(self, sink: StatsSink) -> None:
        with self._changed:
            if self._status.stage is not EngineStage.READY or self._outbox is None:
                raise self._not_ready()
            self._outbox.put(encode_frame([self._router.expect_stats(sink)]))

    def first_token(
        self, token_ids: Sequence[int], cache_salt: str = "", tenant: str = "", limit_s: float = math.inf
    ) -> FirstToken | None:
        return self._router.first_token(token_ids, cache_salt, tenant, limit_s)

    @property
    def num_pending(self) -> int:
        return self._router.num_pending

    def retry_after_s(self) -> float:
        return self._router.retry_after_s()

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def drain(self) -> None:
        with self._changed:
            self._is_draining = True

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._set_status(EngineStage.CLOSED, "the server is shutting down")
            if self._outbox is not None:
                self._outbox.put(encode_frame([Shutdown()]))
            process, thread = self._process, self._thread
            grace_s = 0.0 if self._ready is None else 1.0  # while it loads, it listens to nobody
            self._ready = None
        self._router.fail_all(self._status.detail)  # now: the engine may be in the middle of a long step
        if process is not None:
            process.end(grace_s)
        if thread is not None:
            thread.join(timeout=1.0)
        atexit.unregister(self.close)

    @property
    def _is_closed(self) -> bool:
        return self._status.stage is EngineStage.CLOSED

    # What runs in the client's own threads.

    def _supervise(self) -> None:
        """Start an engine, serve it until it is gone, and start the next one while the budget lasts."""
        while not self._is_closed:
            try:
                reason, may_restart = self._serve_one()
            except Exception as error:  # a fault of ours: whoever waits for the engine must hear of it
                logger.exception("the client of the engine failed")
                reason, may_restart = f"the client of the engine failed ({error!r}); see the log", False
            delay_s = self._budget.take() if may_restart else None
            with self._changed:
                self._ready = None
                if self._is_closed:
                    return  # close() has told who waited
                if delay_s is not None:
                    self._set_status(EngineStage.LOADING, f"starting again: {reason}")
                    self._changed.wait_for(lambda: self._is_closed, delay_s)
                    continue
                self._set_status(EngineStage.FAILED, reason)
            if self._was_ready:  # else whoever waits for the start is told
                logger.error("the engine is not started again: %s", reason)
            self._router.fail_all(reason)
            return

    def _serve_one(self) -> tuple[str, bool]:
        """Run one engine to its end; the reason for the end, and whether another one may be tried."""
        self._started_at = time.perf_counter()
        try:
            process = self._spawn()
        except OSError as error:
            # after an engine that worked it is a shortage, of memory or descriptors, which may pass
            return f"the engine process could not be started: {error}", self._was_ready
        with self._changed:
            self._process = process
            outbox = self._outbox = Outbox()
            outbox.put(encode_frame([Start(config=self._config, is_second=self._was_ready)]))
            self._send_unsent()
        if self._is_closed:
            process.end(grace_s=0.0)
        writer = threading.Thread(target=_write, args=(process, outbox), name="engine-writer", daemon=True)
        writer.start()
        start_error = None
        try:
            start_error = self._read(process)
        finally:
            with self._changed:
                self._outbox = None  # from here on, requests wait for the next engine
            outbox.put(None)
            exit_reason = process.wait()  # closes the channel, so that the writer sleeps on it no longer
            writer.join()
            running_ids = process.board.read().request_ids
            process.board.close()
        if start_error is not None and not self._was_ready:
            return start_error, False
        # after an engine that worked, what another one lacks at its start may come back
        reason = start_error or f"the engine process has ended ({exit_reason})"
        if self._is_closed:
            logger.info("engine pid %d was ended by legato", process.pid)
        else:
            if self._router.engine_died(running_ids, reason):
                self._budget.pardon()
            logger.error(
                "engine pid %d has ended: %s; requests in its step: %d, and to go on with the next one: %d",
                *(process.pid, start_error or exit_reason, len(running_ids), self._router.num_pending),
            )
        return reason, True

    def _read(self, process: EngineProcess) -> str | None:
        """Hand on what an engine says until it is gone; why its start failed, if it did."""
        watchdog = Watchdog()
        limit_s = float(self._config.watchdog_s)
        start_error = None
        while True:
            try:
                messages = process.channel.receive(timeout_s=limit_s / 4)
            except ChannelClosedError:
                return start_error
            for message in messages:
                if isinstance(message, StartFailed):
                    start_error = message.error
                self._dispatch(message)
            is_loading = self._ready is None
            has_work = is_loading or self._router.num_pending > 0
            still_s = watchdog.stillness_s(process.board.read().ticks, has_work=has_work)
            if still_s > (max(limit_s, LOADING_LIMIT_S) if is_loading else limit_s):
                logger.error("engine pid %d has made no progress for %.0f s", process.pid, still_s)
                process.process.kill()

    def _send_unsent(self) -> None:
        """Tell the engine of the requests that it must know of now. Needs the lock: order is kept so."""
        if self._outbox is not None and (unsent := self._router.take_unsent()):
            self._outbox.put(encode_frame(unsent))

    def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Progress():
                self._advance(EngineStage.LOADING, message.stage)
                logger.info("start: %s %.2f s (%s)", message.stage, message.seconds, message.detail)
            case Ready():
                self._router.begin(message)
                with self._changed:
                    self._ready = None if self._is_closed else message
                    self._was_ready = True
                seconds = time.perf_counter() - self._started_at
                logger.info("start: waiting for work, %.2f s after the start of the engine", seconds)
                self._advance(EngineStage.READY, "waiting for work")  # last: others go on from here
            case StartFailed():
                pass  # _serve_one ends with its reason
            case _:
                self._router.route(message)
                if isinstance(message, TokenOutput):
                    self._budget.refill()  # an engine that gives tokens works

    def _advance(self, stage: EngineStage, detail: str) -> None:
        """Move on, unless the client was closed meanwhile: that is for good."""
        with self._changed:
            if not self._is_closed:
                self._set_status(stage, detail)

    def _set_status(self, stage: EngineStage, detail: str) -> None:
        self._status = EngineStatus(stage, detail, is_second=self._was_ready)
        self._changed.notify_all()
        if stage is not EngineStage.LOADING:
            for ready in list(self._awaited):
                if ready.set_running_or_notify_cancel():
                    self._tell(ready)

    def _tell(self, waiting: "Future[Ready]") -> None:
        try:
            waiting.set_result(self._ready_now())
        except NotReadyError as error:
            waiting.set_exception(error)

    def _ready_now(self) -> Ready:
        """Needs the lock. Raises NotReadyError, ClosedError."""
        if self._status.stage is EngineStage.READY and self._ready is not None:
            return self._ready
        raise self._not_ready()

    def _not_ready(self) -> NotReadyError:
        status = self._status
        if self._is_draining and not self._is_closed:
            return ClosedError(IS_ENDING)
        if status.stage is EngineStage.LOADING:
            return NotReadyError(
                f"the engine is still loading ({status.detail or 'starting'}); try again soon"
            )
        if status.stage is EngineStage.CLOSED:
            return ClosedError(status.detail)
        if status.stage is EngineStage.READY:
            return NotReadyError("the engine has just ended, the next one is started; try again soon")
        return NotReadyError(status.detail or f"the engine is {status.stage}", retry_after_s=None)


def _write(process: EngineProcess, outbox: Outbox) -> None:
    """Send what is put on the outbox. What cannot be sent is lost with this engine, not without it."""
    try:
        while (frame := outbox.get()) is not None:
            process.channel.send_frame(frame)
    except ChannelClosedError:
        pass
    finally:
        process.channel.hang_up()  # the reader hears it, and the next engine is told everything again
