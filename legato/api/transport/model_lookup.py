"""How a route gets at the models of the app that its request came to."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from legato.api.answers.deadlines import Deadlines
from legato.api.answers.plain import while_connected
from legato.api.service import ModelService, ServedModels


def served_models(request: Request) -> ServedModels:
    models: ServedModels = request.app.state.models
    return models


async def find_started(request: Request, name: str | None) -> tuple[str, ModelService]:
    """The service, and the name it is called by; what has not been loaded is loaded, and stays to the end.

    Raises UnknownModelError, QueueTimeoutError when the request's time ends before the engine is loaded,
    ClientDisconnect when its client leaves before, and what ModelService.enter raises.
    """
    name, service = served_models(request).find(name)
    async with Deadlines.of(request).while_queueing():
        if (release := service.enter_now()) is not None:
            _hold(request, release)
        else:
            await while_connected(request, _enter(request, service))
    return name, service


async def _enter(request: Request, service: ModelService) -> None:
    _hold(request, await service.enter())  # also when nobody waits for us any more


def _hold(request: Request, release: Callable[[], None]) -> None:
    request.state.on_end.append(lambda _: release())


ModelsDep = Annotated[ServedModels, Depends(served_models)]
