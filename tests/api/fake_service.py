"""A served model without an engine."""

from collections.abc import Callable, Mapping
from typing import Any

from legato.api.service import ServiceState
from legato.core.errors import NotReadyError
from legato.ipc.messages import EngineStats
from legato.ipc.prediction.first_token import FirstToken
from tests.fakes import FakeGenerator


class FakeService:
    """Implements ModelService around a FakeGenerator; counts its starts."""

    def __init__(self, generator: FakeGenerator | None = None, names: tuple[str, ...] = ("fake",)) -> None:
        self.generator = generator or FakeGenerator()
        self.names = names
        self.max_model_len: int | None = 1024
        self.default_params: Mapping[str, Any] = {}
        self.created = 1_700_000_000
        self.fingerprint = "fp_fake"
        self.start_error: Exception | None = None
        self.num_starts = 0
        self.num_closes = 0
        self.num_users = 0
        self.is_draining = False
        self.num_pending = 0
        self.predicted: FirstToken | None = None
        self.engine_stats: EngineStats | None = EngineStats(pages_free=64)
        self.current_state = ServiceState(stage="serving", is_ready=True, is_alive=True, progress=1.0)

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.num_starts += 1

    async def enter(self) -> Callable[[], None]:
        await self.start()
        self.num_users += 1
        return self._leave

    def enter_now(self) -> Callable[[], None] | None:
        if self.start_error is not None:
            return None
        self.num_starts += 1
        self.num_users += 1
        return self._leave

    def _leave(self) -> None:
        self.num_users -= 1

    async def stats(self) -> EngineStats:
        if self.engine_stats is None:
            raise NotReadyError("no engine runs")
        return self.engine_stats

    def latest_stats(self) -> EngineStats | None:
        return self.engine_stats

    def state(self) -> ServiceState:
        return self.current_state

    def first_token(self, limit_s: float) -> FirstToken | None:
        return self.predicted

    def drain(self) -> None:
        self.is_draining = True

    async def close(self) -> None:
        self.num_closes += 1
