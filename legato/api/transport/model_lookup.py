"""How a route gets at the models of the app that its request came to."""

from typing import Annotated

from fastapi import Depends, Request

from legato.api.answers.deadlines import Deadlines
from legato.api.service import ModelService, ServedModels


def served_models(request: Request) -> ServedModels:
    models: ServedModels = request.app.state.models
    return models


async def find_started(request: Request, name: str | None) -> tuple[str, ModelService]:
    """The service, and the name it is called by; where no lifespan has started its engine, this does.

    Raises UnknownModelError, QueueTimeoutError when the request's time ends before the engine is loaded, and
    what ModelService.start raises.
    """
    name, service = served_models(request).find(name)
    async with Deadlines.of(request).while_queueing():
        await service.start()
    return name, service


ModelsDep = Annotated[ServedModels, Depends(served_models)]
