"""`app`, configured by LEGATO_* alone: `uvicorn legato.api.asgi:app --host 0.0.0.0 --port 8000`."""

import logging
from collections.abc import Mapping

from fastapi import FastAPI

from legato.api.app import create_app
from legato.api.service import ModelService
from legato.api.several_models.configs import split_models
from legato.api.several_models.service import make_services
from legato.core.config import EngineConfig, ServerConfig
from legato.core.descriptors import raise_descriptor_limit
from legato.core.errors import ConfigError
from legato.core.settings import resolve_settings, unknown_variables
from legato.observability.logs import set_up_logging

logger = logging.getLogger(__name__)


def app_for(service: ModelService, server: ServerConfig, *others: ModelService) -> FastAPI:
    """The app that serves each model under all its names; the first is the default."""
    by_name = {name: each for each in (service, *others) for name in each.names}
    return create_app(by_name, server)


def app_from_environment(environ: Mapping[str, str] | None = None) -> FastAPI:
    """The app that LEGATO_* variables describe. Raises ConfigError naming the one that does not fit."""
    server = resolve_settings(ServerConfig, {}, environ).value
    set_up_logging(server.log_level, log_format=server.log_format)
    raise_descriptor_limit()
    for warning in unknown_variables(environ):
        logger.warning(warning)
    engine = resolve_settings(EngineConfig, {}, environ).value
    first, *others = make_services(engine, server, split_models(engine.model))
    return app_for(first, server, *others)


def __getattr__(name: str) -> FastAPI:
    """Make `app` when it is first asked for, so that importing this module reads no environment."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        app = app_from_environment()
    except ConfigError as error:  # one line, where a server would print its own stack of imports
        raise SystemExit(f"legato: error: {error}") from None
    globals()["app"] = app
    return app
