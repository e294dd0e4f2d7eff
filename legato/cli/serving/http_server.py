"""uvicorn's server, with an end that is quick, clean, and has a reason."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from legato.api.service import ModelService
from legato.core.errors import LegatoError, ModelError

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75  # longer than the idle time of the usual clients' pools, so that it is they who close
STREAM_GRACE_S = 0.3  # for answers that are about to end; those that run on then end with an error event
LAST_GRACE_S = 1  # then uvicorn cuts connections whose clients do not even read that


class HttpServer(uvicorn.Server):
    """Serves one model until a signal, or until it turns out that the model cannot be served.

    on_ready  called once, when the model is
    """

    def __init__(self, app: FastAPI, service: ModelService, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                ws="none",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,  # --enable-log-requests says more, and never of probes
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_GRACE_S,
                forwarded_allow_ips="127.0.0.1,::1",  # whoever else says "forwarded for" may be lying
            )
        )
        self.end_reason = "an internal error"
        self._service = service
        self._on_ready = on_ready
        self._failure: LegatoError | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve to the end. Raises ModelError when it ends because the model cannot be served."""
        super().run(sockets)
        if self._failure is not None:
            raise self._failure

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal ends cleanly, the second at once."""
        if self.should_exit:
            logger.warning("end: a second signal, without waiting for anybody")
            sys.stderr.flush()
            os._exit(128 + sig)  # the engine sees its socket close, and ends too
        self.end_reason = signal.Signals(sig).name
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._start = asyncio.create_task(self._watch_start())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._start.cancel()
        ending = asyncio.create_task(self._end_streams())
        await super().shutdown(sockets)
        ending.cancel()

    async def _watch_start(self) -> None:
        try:
            await self._service.start()
        except LegatoError as error:
            self._failure = ModelError(self._service.state().reason or str(error))
            self.end_reason = "the model cannot be served"
            self.should_exit = True
        else:
            self._on_ready()

    async def _end_streams(self) -> None:
        await asyncio.sleep(STREAM_GRACE_S)
        await self._service.close()
