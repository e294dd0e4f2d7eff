"""`app`, configured by LEGATO_* alone: `uvicorn legato.api.asgi:app --host 0.0.0.0 --port 8000`."""

from collections.abc import Mapping

from fastapi import FastAPI

from legato.api.app import create_app
from legato.api.engine_service import EngineService
from legato.core.config import EngineConfig, ServerConfig
from legato.core.settings import resolve_settings
from legato.observability.logs import set_up_logging


def app_for(engine: EngineConfig, server: ServerConfig) -> FastAPI:
    """The app that serves one model under all its names."""
    service = EngineService(engine)
    return create_app(dict.fromkeys(service.names, service), server)


def app_from_environment(environ: Mapping[str, str] | None = None) -> FastAPI:
    """The app that LEGATO_* variables describe."""
    server = resolve_settings(ServerConfig, {}, environ).value
    set_up_logging(server.log_level)
    return app_for(resolve_settings(EngineConfig, {}, environ).value, server)


def __getattr__(name: str) -> FastAPI:
    """Make `app` when it is first asked for, so that importing this module reads no environment."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = app_from_environment()
    globals()["app"] = app
    return app
