"""Starts `python -m legato.engine`, ends it, and says how often it may be started again."""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from legato.ipc.channel import Channel, client_end
from legato.ipc.messages import FromEngine

logger = logging.getLogger(__name__)

# A product of the reference backend has the same bits in every run only if BLAS always splits it alike.
_ENGINE_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine process and our end of its socket."""

    process: "subprocess.Popen[bytes]"
    channel: Channel[FromEngine]

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> str:
        """Reap the process, which has closed its socket; how it ended, in words."""
        self.channel.close()
        try:
            code = self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def end(self, grace_s: float) -> None:
        """Give the process `grace_s` to end by itself, then kill it."""
        try:
            self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RestartBudget:
    """At most `max_restarts` in any `window_s`: an engine that dies at once is not started for ever."""

    def __init__(self, max_restarts: int, window_s: float, clock: Callable[[], float]) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._clock = clock
        self._restarts: deque[float] = deque()

    def take(self) -> bool:
        """Whether one more restart is allowed now; counts it if so."""
        now = self._clock()
        while self._restarts and now - self._restarts[0] > self._window_s:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            return False
        self._restarts.append(now)
        return True


def start_engine() -> EngineProcess:
    """Start an engine process; it waits for its Start message. Raises OSError when it cannot be started."""
    ours, theirs = socket.socketpair()
    with theirs:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        process = subprocess.Popen(
            [sys.executable, "-m", "legato.engine", "--fd", str(theirs.fileno()), "--log-level", level],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C on a terminal is for us alone: we end the engine
            env=os.environ | _ENGINE_ENVIRONMENT,
        )
    logger.info(
        "start: parent pid %d, engine pid %d, by subprocess over a socket pair", os.getpid(), process.pid
    )
    return EngineProcess(process, client_end(ours))
