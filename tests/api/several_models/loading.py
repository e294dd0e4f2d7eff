"""A loader whose engines are made up: tests say when they are loaded and of what they die."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from legato.api.service import ServiceState
from legato.api.several_models import loader as loader_module
from legato.api.several_models.loader import ModelLoader, Release, Stay, Ticket
from legato.api.several_models.memory_need import Need
from legato.core.config import EngineConfig
from legato.core.errors import LegatoError
from legato.ipc.messages import EngineStats
from legato.modelfiles.catalog import Report
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator

LIMIT_BYTES, NEED_BYTES = 100, 60  # one fits, two do not
PATIENCE_S = 20.0


def wait_for(condition: Callable[[], bool]) -> None:
    """Another thread makes it true."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


class FakeStay(FakeService):
    """Implements LoadableService; answers with its model's name."""

    def __init__(self, config: EngineConfig, engines: "FakeEngines") -> None:
        name = config.model
        super().__init__(FakeGenerator(output=name), (name,))
        self.fault: str | None = None
        self._engines = engines
        self.current_state = ServiceState(stage="loading", is_ready=False, is_alive=True, progress=0.3)

    def load(self) -> None:
        self._engines.loads.append(self.names[0])
        assert self._engines.may_load.wait(PATIENCE_S)
        if self._engines.errors:
            raise self._engines.errors.pop(0)
        self.current_state = ServiceState(stage="ready", is_ready=True, is_alive=True, progress=1.0)

    def die(self, reason: str) -> None:
        self.fault = reason
        self.current_state = ServiceState(stage="failed", is_ready=False, is_alive=False, reason=reason)

    def latest_stats(self) -> EngineStats | None:
        is_working = self.fault is None and not self.num_closes
        return self.engine_stats if is_working else None

    def counted(self) -> EngineStats:
        return self.engine_stats or EngineStats()

    async def close(self) -> None:
        await super().close()
        self.current_state = ServiceState(stage="closed", is_ready=False, is_alive=False)
        await asyncio.to_thread(self._engines.may_end.wait, PATIENCE_S)
        self._engines.closed.append(self.names[0])


class FakeEngines:
    """Makes stays. loads and closed name their models, in order; a load raises the next of errors."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.closed: list[str] = []
        self.errors: list[Exception] = []
        self.may_load = threading.Event()
        self.may_load.set()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, config: EngineConfig) -> FakeStay:
        return FakeStay(config, self)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Loading:
    """Models a, b and c of 60 bytes each; one fits into the limit."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        limit_bytes: int = LIMIT_BYTES,
        max_waiting: int = 4,
        idle_s: float = math.inf,
    ) -> None:
        self.needs = dict.fromkeys("abc", NEED_BYTES)
        self.has_files = threading.Event()  # else they are being downloaded
        self.has_files.set()

        def need_of(config: EngineConfig, limit_bytes: int, num_models: int, report: Report = print) -> Need:
            if not self.has_files.is_set():
                report(f"downloading {config.model}")
                assert self.has_files.wait(PATIENCE_S)
            return Need(config, self.needs[config.model])

        patch.setattr(loader_module, "need_of", need_of)
        self.engines, self.clock = FakeEngines(), Clock()
        models = [
            (name, EngineConfig(model=name, max_num_queued_reqs=max_waiting)) for name in ("a", "b", "c")
        ]
        self.loader = ModelLoader(
            models, self.engines, limit_bytes=limit_bytes, idle_s=idle_s, clock=self.clock
        )
        self.a, self.b, self.c = self.loader.stays

    def enter(self, stay: Stay) -> Release:
        """Wait for the model, and stay in it."""
        return self.ask(stay).result(PATIENCE_S)

    def ask(self, stay: Stay) -> Ticket:
        return self.loader.enter(stay)

    def service(self, stay: Stay) -> FakeStay:
        assert isinstance(stay.service, FakeStay)
        return stay.service

    def close(self) -> None:
        self.engines.may_end.set()
        for stay in self.loader.stays:
            asyncio.run(self.loader.close(stay))
        self.engines.may_load.set()


def error_of(ticket: "Future[Release]") -> LegatoError:
    error = ticket.exception(PATIENCE_S)
    assert isinstance(error, LegatoError)
    return error
