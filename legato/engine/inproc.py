"""An EngineClient without a process: the core runs in a thread. For tests and debuggers."""

import math
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from legato.core.errors import ClosedError, NotReadyError
from legato.engine.assembly import Engine
from legato.engine.loop import handle
from legato.ipc.engine_client import EngineStage, EngineStatus
from legato.ipc.messages import AddRequest, EngineStats, Ready, ToEngine
from legato.ipc.prediction.first_token import FirstToken
from legato.ipc.reply_router import Reply, ReplyRouter, Sink, StatsSink


class InprocClient:
    """Drives an Engine like the loop of the engine process, with a queue in place of the socket."""

    def __init__(self, engine: Engine) -> None:
        self._core = engine.core
        self.ready: Ready | None = Ready(
            max_model_len=engine.max_model_len,
            vocab_size=engine.core.limits.vocab_size,
            eos_ids=sorted(engine.core.eos_ids),
            num_pages=engine.cache.num_pages,
            page_size=engine.cache.page_size,
            numeric_mode=engine.numeric_mode,
            scheduler=engine.core.scheduler.config,
        )
        self.status = EngineStatus(EngineStage.READY, "waiting for work")
        self._router = ReplyRouter()
        self._router.begin(self.ready)
        self._inbox: SimpleQueue[Sequence[ToEngine] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="inproc-engine", daemon=True)
        self._is_draining = False
        self._lock = threading.Lock()  # no request is taken once the engine has ended

    @property
    def latest_stats(self) -> EngineStats:
        return self._router.latest_stats

    def start(self) -> None:
        if not self._thread.is_alive() and self.status.stage is EngineStage.READY:
            self._thread.start()

    def wait_ready(self, timeout_s: float) -> Ready:
        if self.ready is None:
            raise self._not_ready()
        return self.ready

    def when_ready(self) -> "Future[Ready]":
        ready: Future[Ready] = Future()
        try:
            ready.set_result(self.wait_ready(0))  # it was loaded before this client was made
        except NotReadyError as error:
            ready.set_exception(error)
        return ready

    def submit(self, requests: Sequence[AddRequest], sink: Sink) -> None:
        with self._lock:
            if self._is_draining or self.ready is None:
                raise self._not_ready()
            self._router.expect(requests, sink)
            self._inbox.put(self._router.take_unsent())

    def abort(self, request_ids: Iterable[str], last_word: Sink | None = None) -> None:
        if aborts := self._router.forget(request_ids, last_word):
            self._inbox.put(aborts)

    def query_stats(self, sink: StatsSink) -> None:
        with self._lock:
            if self.ready is None:
                raise self._not_ready()
            self._inbox.put([self._router.expect_stats(sink)])

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
        self._is_draining = True

    def close(self) -> None:
        if self.status.stage is EngineStage.CLOSED:
            return
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._end(EngineStage.CLOSED, "it was closed")
        self._core.close()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._end(EngineStage.FAILED, f"{type(error).__name__}: {error}")
            raise

    def _end(self, stage: EngineStage, reason: str) -> None:
        with self._lock:
            self.status, self.ready = EngineStatus(stage, reason), None
        self._router.fail_all(f"the engine has ended: {reason}")

    def _not_ready(self) -> NotReadyError:
        reason = f"the engine is {self.status.stage}: {self.status.detail}"
        if self._is_draining:
            return ClosedError("the engine finishes what runs and takes nothing new")
        if self.status.stage is EngineStage.CLOSED:
            return ClosedError(reason)
        return NotReadyError(reason, retry_after_s=None)

    def _serve(self) -> None:
        while (messages := self._receive()) is not None:
            replies: list[Reply | EngineStats] = [
                reply for message in messages for reply in handle(self._core, message)
            ]
            if self._core.has_work:
                replies += self._core.step()
            else:
                self._core.check_integrity()
            for reply in [*replies, self._core.stats()]:
                self._router.route(reply)

    def _receive(self) -> list[ToEngine] | None:
        """Everything that has arrived, or None when told to end; sleeps only when there is no work."""
        received: list[ToEngine] = []
        wait_s = self._core.idle_s if self._core.has_work else None
        while True:
            try:
                messages = self._inbox.get(block=wait_s != 0, timeout=wait_s)
            except Empty:
                return received
            if messages is None:
                return None
            received += messages
            wait_s = 0
