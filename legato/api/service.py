"""The models that an app serves, as the routes see them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from legato.core.errors import UnknownModelError
from legato.frontend.generator import Generator
from legato.ipc.messages import EngineStats
from legato.ipc.prediction.first_token import FirstToken


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """How a model's engine is.

    stage     of the start or the end, e.g. "loading", "respawning", "ready", "overloaded", "draining"
    is_ready  takes requests now
    is_alive  serves, or will without anybody's help (loading, respawning): /health is 200
    reason    why it is not ready, or not alive; "" when it is
    progress  share of the start that is done, 0 to 1
    retry_after_s  when to ask again; None when it will never be otherwise
    """

    stage: str
    is_ready: bool
    is_alive: bool
    reason: str = ""
    progress: float = 0.0
    retry_after_s: float | None = 1.0


class ModelService(Protocol):
    """One served model: its generator, and the engine behind it.

    names           served names, the first one is shown; metrics carry it
    max_model_len   tokens in its context; may be None before start()
    default_params  the model's own sampling defaults, used where a body leaves a field out; after start()
    created         seconds since the epoch
    fingerprint     names weights and numeric mode: another value may give other tokens for the same seed
    Keeps no asyncio object over calls: each may come on an event loop of its own.
    """

    @property
    def generator(self) -> Generator: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def default_params(self) -> Mapping[str, Any]: ...
    @property
    def created(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...

    async def start(self) -> None:
        """Return when the engine takes requests; at once when it does already.

        Raises ModelError, ConfigError or NotReadyError.
        """

    async def enter(self) -> Callable[[], None]:
        """As start(), for one call: its model stays loaded until it calls what this returns.

        Raises OverloadedError too, when many calls wait for the engine.
        """
        ...

    def enter_now(self) -> Callable[[], None] | None:
        """As enter(), where nothing need be waited for; None, and nothing is done, where something must."""
        ...

    async def stats(self) -> EngineStats:
        """Ask the engine, ledgers of its requests included. Raises NotReadyError."""
        ...

    def latest_stats(self) -> EngineStats | None:
        """What the engine last said of itself, without waiting; None when none runs."""
        ...

    def state(self) -> ServiceState: ...

    def first_token(self, limit_s: float) -> FirstToken | None:
        """Of the shortest prompt; None where nobody can tell. `limit_s` is what is too long a wait."""
        ...

    def drain(self) -> None:
        """Take no more requests; what runs goes on."""

    @property
    def num_pending(self) -> int:
        """Requests that have not ended."""
        ...

    async def close(self) -> None: ...


class ServedModels:
    """Finds services by the names that clients use; a name is only ever looked up here, never a path."""

    def __init__(self, services: Mapping[str, ModelService]) -> None:
        if not services:
            raise ValueError("an app serves at least one model")
        self._by_name = dict(services)

    def items(self) -> list[tuple[str, ModelService]]:
        return list(self._by_name.items())

    def unique(self) -> list[ModelService]:
        """Each service once, though it may have several names."""
        return list({id(service): service for service in self._by_name.values()}.values())

    @property
    def is_several(self) -> bool:
        return len(self.unique()) > 1

    def find(self, name: str | None) -> tuple[str, ModelService]:
        """The service and the name it is called by; None asks for the first. Raises UnknownModelError."""
        if name is None:
            name = next(iter(self._by_name))
        if name not in self._by_name:
            known = ", ".join(self._by_name)
            raise UnknownModelError(f"model {name[:80]!r} is not served here; served: {known}", param="model")
        return name, self._by_name[name]
