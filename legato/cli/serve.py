"""`legato serve`: the port first, then the model's files, then the server."""

import argparse
import logging
import socket
import time

from legato.cli.options import add_model, add_print_config, add_settings, config_table, resolve
from legato.cli.serving.listener import is_loopback, open_listener, url_of
from legato.cli.serving.tls import check_tls
from legato.core.api_keys import with_keys_of_file
from legato.core.config import EngineConfig, ServerConfig
from legato.core.descriptors import max_connections, raise_descriptor_limit
from legato.observability.logs import set_up_logging
from legato.observability.tracing import check_tracing

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_print_config(parser)
    add_settings(parser, ServerConfig, "server")
    add_settings(parser, EngineConfig, "engine")
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
        return _serve(engine.value, settings, listener, started)


def warn_if_open(listener: socket.socket, server: ServerConfig) -> None:
    """Say who is served when others can reach the port and no key parts them from strangers."""
    if not server.api_key and not is_loopback(listener):
        logger.warning(
            "%s is open to other machines and there is no API key: only clients on this machine are served,"
            " others get 401; give --api-key KEY or LEGATO_API_KEY to serve them",
            server.host,
        )


def _serve(engine: EngineConfig, server: ServerConfig, listener: socket.socket, started: float) -> int:
    from legato.modelfiles.catalog import resolve as resolve_model

    resolve_model(engine.model, revision=engine.revision, report=logger.info)
    connections = max_connections(raise_descriptor_limit())
    logger.info("start: up to %d connections at once (ulimit -Hn sets the limit)", connections)

    from legato.api.engine_service import EngineService
    from legato.cli.serving.early_signals import EarlySignals

    signals = EarlySignals()
    service = EngineService(engine)
    service.open()

    from legato.api.asgi import app_for  # a second of imports, while the engine loads
    from legato.cli.serving.http_protocol import ConnectionLimits
    from legato.cli.serving.http_server import HttpServer

    is_tls = server.ssl_certfile is not None

    def tell_ready() -> None:
        """On standard output, however quiet the log is: nothing else names the port that 0 has chosen."""
        seconds = time.perf_counter() - started
        print(f"ready on {url_of(listener, is_tls=is_tls)} ({service.names[0]}, {seconds:.1f} s)", flush=True)

    http_server = HttpServer(
        app_for(service, server),
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
    return 0
