"""How a route gets at the models of the app that its request came to."""

from typing import Annotated

from fastapi import Depends, Request

from legato.api.answers.deadlines import Deadlines
from legato.api.service import ModelService, ServedModels


def served_models(request: Request) -> ServedModels:
    models: ServedModels = request.app.state.models
    return models


async def find_started(request: Request, name: str | None) -> tuple[str, ModelService]:
    """The service, and the name it is called by; what has not been loaded is loaded, and stays to the end.

    Raises UnknownModelError, QueueTimeoutError when the request's time ends before the engine is loaded, and
    what ModelService.enter raises.
    """
    name, service = served_models(request).find(name)
    async with Deadlines.of(request).while_queueing():
        release = await service.enter()
    request.state.on_end.append(lambda _: release())
    return name, service


ModelsDep = Annotated[ServedModels, Depends(served_models)]
