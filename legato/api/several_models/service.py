"""A ModelService of several: loaded on its first call, unloaded when another needs its memory."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from legato.api.engine_service import EngineService
from legato.api.service import ModelService, ServiceState
from legato.api.several_models.configs import config_of_each
from legato.api.several_models.loader import ModelLoader, Stay
from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError, NotReadyError
from legato.frontend.generator import Generator
from legato.ipc.messages import EngineStats
from legato.ipc.prediction.first_token import FirstToken
from legato.modelfiles.catalog import served_name


class OnDemandService:
    """Implements ModelService over the stays that a ModelLoader gives the model."""

    def __init__(self, loader: ModelLoader, stay: Stay, names: tuple[str, ...]) -> None:
        self.names = names
        self.created = int(time.time())
        self._loader = loader
        self._stay = stay

    @property
    def generator(self) -> Generator:
        return self._loaded().generator

    @property
    def max_model_len(self) -> int | None:
        """As the engine told it, also after its end."""
        return self._stay.max_model_len or self._stay.config.max_model_len

    @property
    def default_params(self) -> Mapping[str, Any]:
        return self._loaded().default_params

    @property
    def fingerprint(self) -> str:
        return self._loaded().fingerprint

    def open(self) -> None:
        """Begin to load the model: it is on its way before anybody waits for it."""
        ticket = self._loader.enter(self._stay)
        ticket.add_done_callback(lambda ticket: self._loader.leave(self._stay, ticket))

    async def start(self) -> None:
        (await self.enter())()

    async def enter(self) -> Callable[[], None]:
        ticket = self._loader.enter(self._stay)
        try:
            release = await asyncio.wrap_future(ticket)
            await self._loaded().start()  # its engine may just be replaced
        except BaseException:
            self._loader.leave(self._stay, ticket)
            raise
        return release

    def enter_now(self) -> Callable[[], None] | None:
        is_working = self._stay.service is not None and self._stay.service.latest_stats() is not None
        return self._loader.enter_now(self._stay) if is_working else None

    async def stats(self) -> EngineStats:
        return await self._loaded().stats()

    def latest_stats(self) -> EngineStats | None:
        """Counters go on where the last engine's ended."""
        past, service = self._stay.past, self._stay.service
        latest = None if service is None else service.latest_stats()
        return None if latest is None else latest.after(past)

    def state(self) -> ServiceState:
        loader, stay = self._loader, self._stay
        fault = loader.fault_of(stay)
        if fault is not None:
            retry_after_s = None if loader.failure else loader.retry_after_s(stay)
            return ServiceState(
                stage="failed", is_ready=False, is_alive=False, reason=fault, retry_after_s=retry_after_s
            )
        if stay.is_leaving:
            reason = "its memory is freed; it is loaded again when it is asked for"
            return ServiceState(stage="unloading", is_ready=self._is_open, is_alive=True, reason=reason)
        service = stay.service
        if service is not None:
            state = service.state()
            is_loading = state.stage in ("opening", "loading")
            return replace(state, stage="loading", is_ready=self._is_open) if is_loading else state
        if loader.is_draining:
            reason = "the server is shutting down"
            return ServiceState(stage="draining", is_ready=False, is_alive=True, reason=reason)
        if not loader.is_prepared and (stay.download or stay.waiting):
            reason = stay.download or "waits until the files of all models are here"
            return ServiceState(stage="opening", is_ready=False, is_alive=True, reason=reason)
        if stay.waiting:
            reason = "waits for memory that other models use"
            return ServiceState(stage="waiting", is_ready=self._is_open, is_alive=True, reason=reason)
        reason = "is loaded when it is asked for"
        return ServiceState(stage="unloaded", is_ready=self._is_open, is_alive=True, reason=reason)

    def first_token(self, limit_s: float) -> FirstToken | None:
        service = self._stay.service
        return None if service is None else service.first_token(limit_s)

    def drain(self) -> None:
        self._loader.drain()
        if (service := self._stay.service) is not None:
            service.drain()

    @property
    def num_pending(self) -> int:
        service = self._stay.service
        return 0 if service is None else service.num_pending

    async def close(self) -> None:
        await self._loader.close(self._stay)

    @property
    def _is_open(self) -> bool:
        """Whether calls may come: those for models that are not loaded are held, once the first was."""
        return self._loader.has_started and not self._loader.is_draining

    def _loaded(self) -> ModelService:
        service = self._stay.service
        if service is None:
            raise NotReadyError(f"{self._stay.name} is not loaded")
        return service


def make_services(
    engine: EngineConfig, server: ServerConfig, models: Sequence[str]
) -> list[EngineService] | list[OnDemandService]:
    """A service for each model; one that shares the machine with none, nor ever leaves, needs no loader.

    Raises ConfigError for settings that do not fit several models, or one that may leave.
    """
    configs = config_of_each(engine, models)
    if len(configs) == 1 and not server.idle_unload_s and server.max_models_memory_bytes is None:
        return [EngineService(configs[0])]
    names = [config.served_model_name or (served_name(config.model),) for config in configs]
    if engine.load_format == "dummy":
        raise ConfigError(
            "--load-format dummy fits neither --idle-unload-s nor --max-models-memory-bytes: made-up weights"
            " have no size to plan with"
        )
    loader = ModelLoader(
        [(name[0], config) for name, config in zip(names, configs, strict=True)],
        EngineService,
        limit_bytes=server.max_models_memory_bytes,
        idle_s=server.idle_unload_s or math.inf,
    )
    return [OnDemandService(loader, stay, name) for name, stay in zip(names, loader.stays, strict=True)]
