"""A ModelService whose engine is a process of its own, opened when it is first needed."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from legato.api.service import ServiceState
from legato.core.background import cancel_and_wait, in_own_thread
from legato.core.config import EngineConfig
from legato.core.errors import (
    IS_ENDING,
    ClosedError,
    EngineDiedError,
    LegatoError,
    ModelError,
    NotReadyError,
    OverloadedError,
)
from legato.frontend.open_llm import OpenedModel, open_llm
from legato.ipc.engine_client import EngineClient, EngineStage
from legato.ipc.messages import EngineStats, Failed
from legato.ipc.prediction.first_token import FirstToken
from legato.modelfiles.catalog import served_name
from legato.modelfiles.fingerprint import weights_fingerprint

if TYPE_CHECKING:
    from legato.frontend.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

LOAD_LIMIT_S = 1800.0  # weights of many gigabytes on a slow disk; what takes longer hangs
HELD_RETRY_S = 1.0  # told to those beyond the bound of held calls

# Share of the start that is done after each stage, by the seconds that they took for the default model.
_PROGRESS = {"imports": 0.2, "config": 0.3, "weights": 0.8, "pool": 0.9, "warm": 0.95}


class EngineService:
    """Implements ModelService. Usable from any event loop: what it keeps belongs to none."""

    def __init__(self, config: EngineConfig) -> None:
        self.names = config.served_model_name or (served_name(config.model),)
        self.created = int(time.time())
        self._config = config
        self._lock = threading.Lock()
        self._opening: Future[None] | None = None
        self._opened: OpenedModel | None = None
        self._failure: LegatoError | None = None
        self._is_closed = self._is_ending = False
        self._doing = "its files and its tokenizer are read"  # until it is opened
        self._held: set[Future[None]] = set()  # one of each call that waits for the engine; it refuses it

    @property
    def generator(self) -> "AsyncLLM":
        return self._need_opened().llm

    @property
    def max_model_len(self) -> int | None:
        ready = self._opened and self._opened.llm.client.ready
        return ready.max_model_len if ready else self._config.max_model_len

    @property
    def default_params(self) -> Mapping[str, Any]:
        return self._need_opened().default_params

    @property
    def fingerprint(self) -> str:
        opened = self._need_opened()
        ready = opened.llm.client.ready
        numeric_mode = ready.numeric_mode if ready else ""
        return f"fp_{weights_fingerprint(opened.path)}_{numeric_mode}"

    def open(self) -> None:
        """Begin to open the model, in a thread: the engine is on its way before anybody waits for it."""
        self._open_once()

    async def start(self) -> None:
        if self._opened is None:
            await asyncio.wrap_future(self._open_once())
        await self._need_opened().llm.wait_ready()

    async def enter(self) -> Callable[[], None]:
        if (release := self.enter_now()) is not None:
            return release
        refusal = Future[None]()
        refusal.set_running_or_notify_cancel()
        with self._lock:
            if self._is_ending:
                raise ClosedError(IS_ENDING)
            if len(self._held) >= (most := self._config.max_num_queued_reqs):
                raise OverloadedError(
                    f"{most} requests wait for the engine to be loaded, and no more may",
                    retry_after_s=HELD_RETRY_S,
                )
            self._held.add(refusal)
        try:
            await _unless(refusal, self.start())
        finally:
            with self._lock:
                self._held.discard(refusal)
        return _stay

    def enter_now(self) -> Callable[[], None] | None:
        is_ready = self._opened is not None and self._opened.llm.client.ready is not None
        return _stay if is_ready else None

    def load(self) -> None:
        """start(), for a thread that may sleep: until the engine takes requests or never will."""
        asyncio.run(self._load())

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                while True:
                    try:
                        return await self.start()
                    except NotReadyError:
                        if self.state().stage not in ("loading", "respawning"):
                            raise
        except TimeoutError:
            raise NotReadyError(f"it was not loaded within {LOAD_LIMIT_S:g} s") from None

    @property
    def fault(self) -> str | None:
        """Why no engine serves this model, nor ever will; None as long as one does or may."""
        state = self.state()
        return None if state.is_alive or state.stage == EngineStage.CLOSED else state.reason

    async def stats(self) -> EngineStats:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[EngineStats] = loop.create_future()

        def deliver(reply: EngineStats | Failed) -> None:
            if answer.done():
                return
            if isinstance(reply, EngineStats):
                answer.set_result(reply)
            else:
                is_closed = client.status.stage is EngineStage.CLOSED
                answer.set_exception((ClosedError if is_closed else EngineDiedError)(reply.error))

        def hand_over(reply: EngineStats | Failed) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(deliver, reply)

        client = self._need_opened().llm.client
        client.query_stats(hand_over)
        return await answer

    def latest_stats(self) -> EngineStats | None:
        if self._opened is None or self._opened.llm.client.ready is None:
            return None
        return self._opened.llm.client.latest_stats

    def counted(self) -> EngineStats:
        return EngineStats() if self._opened is None else self._opened.llm.client.latest_stats

    def state(self) -> ServiceState:
        if self._failure is not None:
            return _gone("failed", str(self._failure))
        if self._opened is None:
            return ServiceState(stage="opening", is_ready=False, is_alive=True, reason=self._doing)
        client = self._opened.llm.client
        status = client.status
        if client.is_draining and status.stage in (EngineStage.READY, EngineStage.LOADING):
            reason = f"the server is shutting down; requests that still run: {client.num_pending}"
            return ServiceState(stage="draining", is_ready=False, is_alive=True, reason=reason)
        if status.stage is EngineStage.READY:
            return _working(client)
        if status.stage is not EngineStage.LOADING:
            return _gone(status.stage, status.detail)
        is_stage = not status.detail or status.detail in _PROGRESS  # else it says why the engine starts again
        return ServiceState(
            stage="respawning" if status.is_second else "loading",
            is_ready=False,
            is_alive=True,
            reason=f"loading, done: {status.detail or 'nothing yet'}" if is_stage else status.detail,
            progress=_PROGRESS.get(status.detail, 0.1),
        )

    def first_token(self, limit_s: float) -> FirstToken | None:
        return self._opened.llm.client.first_token([0], limit_s=limit_s) if self._opened else None

    def drain(self) -> None:
        self._refuse_held()
        if self._opened is not None:
            self._opened.llm.client.drain()

    @property
    def num_pending(self) -> int:
        return 0 if self._opened is None else self._opened.llm.client.num_pending

    async def close(self) -> None:
        self._refuse_held()
        with self._lock:
            self._is_closed = True  # whoever opens it still will close it
            opened = self._opened
        if opened is not None:
            await asyncio.wrap_future(in_own_thread("engine-closer", opened.llm.close))

    def _refuse_held(self) -> None:
        with self._lock:
            self._is_ending = True
            held, self._held = self._held, set()
        for refusal in held:
            refusal.set_exception(ClosedError(IS_ENDING))

    def _open_once(self) -> "Future[None]":
        """The one opening: all await the same, and a model that cannot be opened is not tried again."""
        with self._lock:
            if self._opening is None:
                self._opening = in_own_thread("model-opener", self._open)
            return self._opening

    def _open(self) -> None:
        try:
            opened = open_llm(self._config, report=self._tell)
        except LegatoError as error:
            self._failure = error
            raise
        except Exception as error:
            logger.exception("the model could not be opened")
            self._failure = ModelError(f"the model could not be opened ({error!r}); see the log")
            raise self._failure from error
        with self._lock:
            self._opened = opened
            is_closed = self._is_closed
        if is_closed:
            opened.llm.close()

    def _tell(self, line: str) -> None:
        logger.info(line)
        self._doing = line

    def _need_opened(self) -> OpenedModel:
        if self._opened is None:
            raise NotReadyError("the model is not open yet; try again soon")
        return self._opened


async def _unless(refusal: "Future[None]", work: Coroutine[Any, Any, None]) -> None:
    """Do the work; it is cancelled when `refusal` fails before, for that reason."""
    working, refused = asyncio.create_task(work), asyncio.wrap_future(refusal)
    try:
        await asyncio.wait((working, refused), return_when=asyncio.FIRST_COMPLETED)
        (working if working.done() else refused).result()
    finally:
        await cancel_and_wait(working, refused)


def _stay() -> None:
    """A call has ended: the one model stays loaded all the same."""


def _working(client: EngineClient) -> ServiceState:
    """Of an engine that works: it is not ready while its queue has no room for another request."""
    excess = _excess_of_queue(client)
    if excess is None:
        return ServiceState(stage="ready", is_ready=True, is_alive=True, progress=1.0)
    return ServiceState(
        stage="overloaded",
        is_ready=False,
        is_alive=True,
        reason=excess,
        progress=1.0,
        retry_after_s=client.retry_after_s(),
    )


def _excess_of_queue(client: EngineClient) -> str | None:
    """Why a request that came now would be refused, by what the engine has said last."""
    if client.ready is None:
        return None
    config, stats = client.ready.scheduler, client.latest_stats
    num_waiting = stats.waiting - (config.max_num_seqs - stats.running)  # for others to end
    if num_waiting >= config.max_queued:
        return f"{num_waiting} requests wait, the limit is {config.max_queued}"
    limit = config.max_queued_tokens
    if limit is not None and num_waiting >= 0 and stats.waiting_tokens >= limit:
        return f"prompts of {stats.waiting_tokens} tokens wait, the limit is {limit}"
    return None


def _gone(stage: str, reason: str) -> ServiceState:
    """Nothing heals this but a new start of the server."""
    return ServiceState(stage=stage, is_ready=False, is_alive=False, reason=reason, retry_after_s=None)
