"""`app`, configured by LEGATO_* alone: `uvicorn legato.api.asgi:app --host 0.0.0.0 --port 8000`."""

import logging
from collections.abc import Mapping

from fastapi import FastAPI

from legato.api.app import create_app
from legato.api.engine_service import EngineService
from legato.core.config import EngineConfig, ServerConfig
from legato.core.descriptors import raise_descriptor_limit
from legato.core.errors import ConfigError
from legato.core.settings import resolve_settings, unknown_variables
from legato.observability.logs import set_up_logging

logger = logging.getLogger(__name__)


def app_for(service: EngineService, server: ServerConfig) -> FastAPI:
    """The app that serves one model under all its names."""
    return create_app(dict.fromkeys(service.names, service), server)


def app_from_environment(environ: Mapping[str, str] | None = None) -> FastAPI:
    """The app that LEGATO_* variables describe. Raises ConfigError naming the one that does not fit."""
    server = resolve_settings(ServerConfig, {}, environ).value
    set_up_logging(server.log_level, log_format=server.log_format)
    raise_descriptor_limit()
    for warning in unknown_variables(environ):
        logger.warning(warning)
    return app_for(EngineService(resolve_settings(EngineConfig, {}, environ).value), server)


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
