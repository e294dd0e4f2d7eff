"""How a route gets at the models of the app that its request came to."""

from typing import Annotated

from fastapi import Depends, Request

from legato.api.service import ServedModels


def served_models(request: Request) -> ServedModels:
    models: ServedModels = request.app.state.models
    return models


ModelsDep = Annotated[ServedModels, Depends(served_models)]
