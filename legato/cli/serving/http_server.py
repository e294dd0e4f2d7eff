"""uvicorn's server, with an end that is quick, clean, and has a reason."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from legato.api.service import ModelService, ServedModels
from legato.cli.serving.http_protocol import ConnectionLimits, WholesaleProtocol
from legato.core.errors import LegatoError

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75  # longer than the idle time of the usual clients' pools, so that it is they who close
STREAM_GRACE_S = 0.3  # for answers that are about to end; those that run on then end with an error event
LAST_GRACE_S = 1  # then uvicorn cuts connections whose clients do not even read that


class HttpServer(uvicorn.Server):
    """Serves one model until a signal, or until it turns out that the model cannot be served.

    on_ready         called once, when the model is
    ssl_certfile, ssl_keyfile  PEM files that fit (`cli/serving/tls.py`); without them it speaks plain HTTP
    drain_timeout_s  what running requests get after the first signal; new ones get 503 meanwhile
    """

    def __init__(
        self,
        app: FastAPI,
        on_ready: Callable[[], None],
        drain_timeout_s: float = 0,
        *,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(WholesaleProtocol, limits=limits),  # type: ignore[arg-type]  # it only calls it
                lifespan="on",
                ws="none",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,  # --enable-log-requests says more, and never of probes
                ssl_certfile=ssl_certfile,
                ssl_keyfile=ssl_keyfile,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_GRACE_S,
                forwarded_allow_ips="127.0.0.1,::1",  # whoever else says "forwarded for" may be lying
            )
        )
        self.end_reason = "an internal error"
        self._models: ServedModels = app.state.models
        self._on_ready = on_ready
        self._failure: LegatoError | None = None
        self._drain_timeout_s = drain_timeout_s
        self._drained_by: float | None = None  # once a signal has come
        self._is_draining = False
        app.state.on_start = self._end_start

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve to the end. Raises what the model cannot be served for, if it ends because of that."""
        super().run(sockets)
        if self._failure is not None:
            raise self._failure

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal ends cleanly, the second at once."""
        if self._drained_by is not None:
            logger.warning("end: a second signal, without waiting for anybody")
            sys.stderr.flush()
            os._exit(128 + sig)  # the engine sees its socket close, and ends too
        self.end_reason = signal.Signals(sig).name
        self._drained_by = time.monotonic() + self._drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, asked ten times a second."""
        if self._drained_by is not None and not self.should_exit:
            self.should_exit = self._drain(self._drained_by)
        return await super().on_tick(counter) or self._failure is not None

    def _drain(self, end: float) -> bool:
        """Whether nothing runs any more, or for too long already."""
        services = self._models.unique()
        num_pending = sum(service.num_pending for service in services)
        if not self._is_draining:
            self._is_draining = True
            for service in services:
                service.drain()
            if num_pending:
                logger.info(
                    "end: requests that still run: %d; they have %g s, and a second signal ends at once",
                    *(num_pending, self._drain_timeout_s),
                )
        if num_pending and time.monotonic() > end:
            logger.warning("end: requests that still run: %d; they are cut", num_pending)
            return True
        return not num_pending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_streams())
        await super().shutdown(sockets)
        ending.cancel()

    def _end_start(self, service: ModelService, seconds: float, error: LegatoError | None) -> None:
        """Told by the app's lifespan."""
        if error is None:
            self._on_ready()
        elif self._drained_by is None:
            self._failure = error
            self.end_reason = "the model cannot be served"

    async def _end_streams(self) -> None:
        await asyncio.sleep(STREAM_GRACE_S)
        await asyncio.gather(*(service.close() for service in self._models.unique()))
