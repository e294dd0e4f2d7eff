"""`legato serve`: the port first, then which models are here, then the server, which brings the others."""

import argparse
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

from legato.cli.options import (
    add_models,
    add_print_config,
    add_settings,
    config_table,
    given_models,
    resolve,
)
from legato.cli.serving.listener import is_loopback, open_listener, url_of
from legato.cli.serving.tls import check_tls
from legato.core.api_keys import with_keys_of_file
from legato.core.config import EngineConfig, ServerConfig
from legato.core.descriptors import max_connections, raise_descriptor_limit
from legato.observability.logs import set_up_logging
from legato.observability.tracing import check_tracing

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_models(parser)
    add_print_config(parser)
    add_settings(parser, ServerConfig, "server")
    add_settings(parser, EngineConfig, "engine", leave_out={"model"})
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal. Raises ListenError, ModelError or ConfigError before it serves."""
    started = time.perf_counter()
    engine, server = resolve(EngineConfig, arguments), resolve(ServerConfig, arguments)
    if arguments.print_config:
        print(config_table(server, engine))
        return 0
    settings = with_keys_of_file(server.value)
    check_tls(settings)
    check_tracing(settings.otlp_traces_endpoint)
    set_up_logging(settings.log_level, log_format=settings.log_format)
    with open_listener(settings.host, settings.port) as listener:
        warn_if_open(listener, settings)
        return _serve(engine.value, given_models(arguments), settings, listener, started)


def warn_if_open(listener: socket.socket, server: ServerConfig) -> None:
    """Say who is served when others can reach the port and no key parts them from strangers."""
    if not server.api_key and not is_loopback(listener):
        logger.warning(
            "%s is open to other machines and there is no API key: only clients on this machine are served,"
            " others get 401; give --api-key KEY or LEGATO_API_KEY to serve them",
            server.host,
        )


def _serve(
    engine: EngineConfig,
    models: Sequence[str],
    server: ServerConfig,
    listener: socket.socket,
    started: float,
) -> int:
    from legato.api.several_models.configs import config_of_each, split_models
    from legato.modelfiles.catalog import where
    from legato.modelfiles.weight_files import check_load_format

    models = models or split_models(engine.model)
    for config in config_of_each(engine, models):
        path = where(config.model, revision=config.revision)
        if path is not None:  # else whoever opens it brings it, and /health answers meanwhile
            check_load_format(config.load_format, path)
    connections = max_connections(raise_descriptor_limit())
    logger.info("start: up to %d connections at once (ulimit -Hn sets the limit)", connections)

    from legato.api.several_models.service import make_services
    from legato.cli.serving.early_signals import EarlySignals

    signals = EarlySignals()
    service, *others = make_services(engine, server, models)
    service.open()

    from legato.api.asgi import app_for  # a second of imports, while the engine loads
    from legato.cli.serving.http_protocol import ConnectionLimits
    from legato.cli.serving.http_server import HttpServer

    is_tls = server.ssl_certfile is not None

    def tell_ready() -> None:
        """On standard output, however quiet the log is: nothing else names the port that 0 has chosen."""
        seconds = time.perf_counter() - started
        more = f" and {len(others)} more on demand" if others else ""
        print(
            f"ready on {url_of(listener, is_tls=is_tls)} ({service.names[0]}{more}, {seconds:.1f} s)",
            flush=True,
        )

    http_server = HttpServer(
        app_for(service, server, *others),
        tell_ready,
        server.drain_timeout_s,
        ssl_certfile=server.ssl_certfile,
        ssl_keyfile=server.ssl_keyfile,
        limits=ConnectionLimits(max_connections=connections, send_timeout_s=server.send_timeout_s),
    )
    signals.hand_to(http_server.handle_exit)
    try:
        http_server.run([listener])
    finally:
        logger.info("end: %s", http_server.end_reason)
    _leave_download()
    return 0


def _leave_download() -> None:
    """End at once in the middle of a download: the hub's client has threads that Python would wait for.

    What has come is kept, and the next start goes on with it.
    """
    if threading.active_count() > 1:  # all that serve have ended
        logging.shutdown()
        os._exit(0)
