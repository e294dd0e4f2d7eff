"""Loads models when they are asked for and unloads them when others need their memory, one at a time."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

from legato.api.service import ModelService
from legato.api.several_models.memory_need import in_mib, need_of
from legato.api.several_models.moves import Move, Place, next_move
from legato.core.config import EngineConfig
from legato.core.errors import (
    IS_ENDING,
    ClosedError,
    LegatoError,
    LoadFailedError,
    ModelError,
    OverloadedError,
    counted,
)
from legato.ipc.messages import EngineStats
from legato.observability.memory import usable_memory_bytes

logger = logging.getLogger(__name__)

RETRY_PAUSES_S = (5.0, 15.0, 60.0, 300.0)  # after the first failed load in a row, the second, …
HELD_RETRY_S = 1.0  # told to those beyond the bound of held calls

Release = Callable[[], None]  # the call has ended; more often than once does no harm
Ticket = Future[Release]  # of a call that waits for its model


class LoadableService(ModelService, Protocol):
    """One stay of a model in memory: EngineService."""

    def load(self) -> None:
        """Sleep until the engine takes requests. Raises LegatoError."""

    @property
    def fault(self) -> str | None:
        """Why the engine is gone for good; None while it is not."""
        ...

    def counted(self) -> EngineStats:
        """What its engines have counted, also when they are gone."""
        ...


MakeService = Callable[[EngineConfig], LoadableService]


@dataclass(slots=True, eq=False)
class Stay:
    """A model: who uses it, who waits for it, and its stay in memory, if it has one now.

    service      of the engine that is loaded, being loaded or being ended
    past         sums of what engines have counted that are gone
    max_model_len  of the engine that was loaded last, tokens
    is_yielding  lets nobody in: it makes room for another
    is_leaving   its engine is being ended
    download     how far its files are, if they were not here at the start
    failure      why it could not be loaded, or has ended; until retry_at nobody tries again
    """

    config: EngineConfig
    name: str
    need_bytes: int = 0
    service: LoadableService | None = None
    max_model_len: int | None = None
    is_loaded: bool = False
    is_yielding: bool = False
    is_leaving: bool = False
    num_users: int = 0
    waiting: dict[Ticket, int] = field(default_factory=dict)  # -> number, in order of arrival
    used_at: float = -math.inf
    stays_until: float = -math.inf
    download: str = ""
    past: EngineStats = field(default_factory=EngineStats)
    failure: str | None = None
    num_failures: int = 0
    retry_at: float = -math.inf

    def place(self) -> Place:
        return Place(
            need_bytes=self.need_bytes,
            is_loaded=self.is_loaded,
            is_dead=self.is_loaded and self.failure is not None,
            num_users=self.num_users,
            used_at=self.used_at,
            stays_until=self.stays_until,
            waiting_number=next(iter(self.waiting.values()), None),
        )


class ModelLoader:
    """One thread that makes the moves. Calls come from any thread or event loop.

    limit_bytes  for all engines together; None: what the machine has free at the start
    idle_s       after so long without a call a model is unloaded
    """

    def __init__(
        self,
        models: Sequence[tuple[str, EngineConfig]],
        make_service: MakeService,
        *,
        limit_bytes: int | None = None,
        idle_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stays = [Stay(config, name) for name, config in models]
        self.has_started = False  # the first load has ended, well or not
        self.is_draining = False
        self.is_prepared = False  # the files of all models are here, and the memory is shared out
        self.failure: LegatoError | None = None  # of all models: nothing can be served
        self._make_service = make_service
        self._limit_bytes = limit_bytes
        self._idle_s = idle_s
        self._clock = clock
        self._changed = threading.Condition()  # guards everything
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def enter(self, stay: Stay) -> Ticket:
        """Let a call in, at once or when its model is loaded; give the ticket of one that leaves to leave().

        Raises ClosedError, LoadFailedError, OverloadedError when too many wait, and why nothing is served.
        """
        ticket = Ticket()
        with self._changed:
            self._raise_if_useless(stay)
            if stay.is_loaded and not stay.is_yielding:
                self._admit(stay, ticket)
                return ticket
            most = stay.config.max_num_queued_reqs
            if len(stay.waiting) >= most:
                raise OverloadedError(
                    f"{len(stay.waiting)} requests wait for {stay.name} to be loaded, the limit is {most}",
                    retry_after_s=HELD_RETRY_S,
                )
            stay.waiting[ticket] = next(self._numbers)
            self._start()
            self._changed.notify_all()
        return ticket

    def enter_now(self, stay: Stay) -> Release | None:
        """Let a call in whose model is loaded; None when it must wait. Raises as enter()."""
        with self._changed:
            self._raise_if_useless(stay)
            if not stay.is_loaded or stay.is_yielding:
                return None
            self._admit(stay, ticket := Ticket())
        return ticket.result()

    def leave(self, stay: Stay, ticket: Ticket) -> None:
        """The call has ended, or waits no longer."""
        with self._changed:
            if stay.waiting.pop(ticket, None) is not None:
                self._changed.notify_all()
                return
        if ticket.done() and not ticket.cancelled() and ticket.exception() is None:
            ticket.result()()

    def drain(self) -> None:
        """Take no more calls; those that wait for a model end, those that run go on."""
        with self._changed:
            self.is_draining = True
            for stay in self.stays:
                self._refuse_waiting(stay, ClosedError(IS_ENDING))
            self._changed.notify_all()

    async def close(self, stay: Stay) -> None:
        """End the engine of one model, and all loading."""
        with self._changed:
            self._is_closed = True
            self._refuse_waiting(stay, ClosedError(IS_ENDING))
            self._changed.notify_all()
            service = stay.service
        if service is not None:
            await service.close()

    def retry_after_s(self, stay: Stay) -> float:
        return max(stay.retry_at - self._clock(), 0.0)

    def fault_of(self, stay: Stay) -> str | None:
        """Why calls for this model fail at once; None when they do not."""
        with self._changed:
            if self.failure is not None:
                return str(self.failure)
            self._notice_death(stay)
            return stay.failure if stay.failure is not None and self.retry_after_s(stay) > 0 else None

    # What needs the lock.

    def _raise_if_useless(self, stay: Stay) -> None:
        if self._is_closed or self.is_draining:
            raise ClosedError(IS_ENDING)
        if self.failure is not None:
            raise self.failure
        self._notice_death(stay)
        if stay.failure is not None and (pause_s := self.retry_after_s(stay)) > 0:
            raise _load_failed(stay, pause_s)

    def _notice_death(self, stay: Stay) -> None:
        if stay.is_loaded and stay.failure is None and stay.service is not None:
            fault = stay.service.fault
            if fault is not None and not self._is_closed:
                self._fail(stay, fault)
                self._changed.notify_all()  # its place is free

    def _fail(self, stay: Stay, reason: str) -> None:
        pause_s = RETRY_PAUSES_S[min(stay.num_failures, len(RETRY_PAUSES_S) - 1)]
        stay.failure = reason
        stay.num_failures += 1
        stay.retry_at = self._clock() + pause_s
        logger.error("%s is not served for %g s: %s", stay.name, pause_s, reason)
        self._refuse_waiting(stay, _load_failed(stay, pause_s))

    def _admit(self, stay: Stay, ticket: Ticket) -> None:
        if not ticket.set_running_or_notify_cancel():
            return
        stay.num_users += 1
        stay.used_at = self._clock()
        is_open = True

        def release() -> None:
            nonlocal is_open
            with self._changed:
                if is_open:
                    is_open = False
                    stay.num_users -= 1
                    stay.used_at = self._clock()
                    self._changed.notify_all()

        ticket.set_result(release)

    def _admit_waiting(self, stay: Stay) -> None:
        waiting, stay.waiting = stay.waiting, {}
        for ticket in waiting:
            self._admit(stay, ticket)

    def _refuse_waiting(self, stay: Stay, error: LegatoError) -> None:
        waiting, stay.waiting = stay.waiting, {}
        for ticket in waiting:
            if ticket.set_running_or_notify_cancel():
                ticket.set_exception(error)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="model-loader", daemon=True)
            self._thread.start()

    def _next(self) -> Move | None:
        """The next move, with what it means for those who wait; None: look again."""
        if self._is_closed:
            return None
        for stay in self.stays:
            self._notice_death(stay)
        move = next_move(
            [stay.place() for stay in self.stays], self._limit_bytes or 0, self._clock(), self._idle_s
        )
        for index, stay in enumerate(self.stays):
            stay.is_yielding = index in move.yielding or index in move.unload
            if stay.is_loaded and not stay.is_yielding and stay.failure is None:
                self._admit_waiting(stay)
        if move.unload or move.load is not None:
            return move
        self._changed.wait(min(max(0.0, move.look_at - self._clock()), threading.TIMEOUT_MAX))
        return None

    # What runs in the loader's thread.

    def _run(self) -> None:
        try:
            self._plan_memory()
            while not self._is_closed:
                with self._changed:
                    move = self._next()
                if move is not None:
                    for index in move.unload:
                        self._unload(self.stays[index])
                    if move.load is not None:
                        self._load(self.stays[move.load])
        except Exception as error:
            if not isinstance(error, LegatoError):
                logger.exception("the loader of models failed")
                error = ModelError(f"the loader of models failed ({error!r}); see the log")
            with self._changed:
                self.failure, self.has_started = error, True
                for stay in self.stays:
                    self._refuse_waiting(stay, error)

    def _plan_memory(self) -> None:
        limit_bytes = usable_memory_bytes() if self._limit_bytes is None else self._limit_bytes
        needs = [
            need_of(stay.config, limit_bytes, len(self.stays), partial(self._tell, stay))
            for stay in self.stays
        ]
        with self._changed:
            self.is_prepared = True
            self._limit_bytes = limit_bytes
            for stay, need in zip(self.stays, needs, strict=True):
                stay.need_bytes = need.num_bytes
        logger.info(
            "start: %d models may take %s in all: %s",
            *(len(needs), in_mib(limit_bytes)),
            ", ".join(f"{stay.name} {in_mib(stay.need_bytes)}" for stay in self.stays),
        )

    def _tell(self, stay: Stay, line: str) -> None:
        logger.info(line)
        stay.download = line

    def _plan_again(self, stay: Stay) -> EngineConfig | None:
        """The settings to load it with, its files as they are now; None: they need others to make room first.

        Raises as need_of().
        """
        limit_bytes = self._limit_bytes or 0
        need = need_of(stay.config, limit_bytes, len(self.stays))
        with self._changed:
            stay.need_bytes = need.num_bytes
            taken_bytes = sum(each.need_bytes for each in self.stays if each.is_loaded)
        return need.config if taken_bytes + need.num_bytes <= limit_bytes else None

    def _load(self, stay: Stay) -> None:
        try:
            config = self._plan_again(stay)
        except Exception as error:
            self._give_up(stay, error)
            return
        if config is not None:
            self._load_with(config, stay)

    def _load_with(self, config: EngineConfig, stay: Stay) -> None:
        since = self._clock()
        occasion = f"for {counted(len(stay.waiting), 'request')}" if self.has_started else "at the start"
        logger.info("load: %s, %s", stay.name, occasion)
        service = self._make_service(config)
        with self._changed:
            if self._is_closed:
                return
            stay.service, stay.failure = service, None
        try:
            service.load()
        except Exception as error:
            self._end(stay, service)
            self._give_up(stay, error)
            return
        now = self._clock()
        logger.info("load: %s has taken %.2f s", stay.name, now - since)
        with self._changed:
            self.has_started = stay.is_loaded = True
            stay.num_failures, stay.max_model_len = 0, service.max_model_len
            stay.used_at, stay.stays_until = now, now + (now - since)
            self._admit_waiting(stay)

    def _give_up(self, stay: Stay, error: Exception) -> None:
        if not isinstance(error, LegatoError):
            logger.error("%s could not be loaded", stay.name, exc_info=error)
        with self._changed:
            self.has_started = True
            if not self._is_closed:
                self._fail(stay, str(error))

    def _unload(self, stay: Stay) -> None:
        assert stay.service is not None
        logger.info("unload: %s, unused for %.1f s", stay.name, self._clock() - stay.used_at)
        self._end(stay, stay.service)
        with self._changed:
            stay.is_loaded = stay.is_yielding = False

    def _end(self, stay: Stay, service: LoadableService) -> None:
        stay.is_leaving = True
        asyncio.run(service.close())
        with self._changed:
            stay.past = service.counted().after(stay.past)
            stay.service, stay.is_leaving = None, False


def _load_failed(stay: Stay, pause_s: float) -> LoadFailedError:
    return LoadFailedError(f"{stay.name} cannot be served now: {stay.failure}", retry_after_s=pause_s)
