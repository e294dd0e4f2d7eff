"""Starts `python -m legato.engine`, ends it, and says how often it may be started again."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from legato.ipc.channel import Channel, client_end
from legato.ipc.messages import FromEngine
from legato.ipc.progress_board import ProgressBoard
from legato.observability.logs import log_format_in_use

logger = logging.getLogger(__name__)

RESTART_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0)

# A product of the reference backend has the same bits in every run only if BLAS always splits it alike.
_ENGINE_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine process and our end of its socket."""

    process: "subprocess.Popen[bytes]"
    channel: Channel[FromEngine]
    board: ProgressBoard

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
    """How often an engine is started again after one that gave no token: not for ever.

    delays_s  how long to wait before the first, the second, … of these restarts
    """

    def __init__(self, delays_s: Sequence[float] = RESTART_DELAYS_S) -> None:
        self._delays_s = delays_s
        self._num_taken = 0
        self._has_worked = False

    def refill(self) -> None:
        """The engine has shown that it works."""
        self._num_taken = 0
        self._has_worked = True

    def pardon(self) -> None:
        """The engine has died of a request that is gone now: no fault of its own, if one ever worked."""
        if self._has_worked:
            self._num_taken = 0

    def take(self) -> float | None:
        """Seconds to wait before one more restart; None when there is none left."""
        if self._num_taken >= len(self._delays_s):
            return None
        self._num_taken += 1
        return self._delays_s[self._num_taken - 1]


class Watchdog:
    """Tells an engine that computes for long from one that hangs: its progress board stands still."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_ticks = -1
        self._since = clock()

    def stillness_s(self, ticks: int, *, has_work: bool) -> float:
        """Since when there has been work and no progress, as far as it was asked."""
        now = self._clock()
        if ticks != self._last_ticks or not has_work:
            self._last_ticks, self._since = ticks, now
        return now - self._since


def start_engine(module: str = "legato.engine") -> EngineProcess:
    """Start an engine process; it waits for its Start message. Raises OSError when it cannot be started."""
    board = ProgressBoard.create()
    with ExitStack() as undo:
        undo.callback(board.close)
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        process = _spawn(module, theirs, board)
        undo.pop_all()  # there is a process, so both live as long as it does
    logger.info(
        "start: parent pid %d, engine pid %d, by subprocess over a socket pair", os.getpid(), process.pid
    )
    return EngineProcess(process, client_end(ours), board)


def _spawn(module: str, theirs: socket.socket, board: ProgressBoard) -> "subprocess.Popen[bytes]":
    """The process, which has its own copies of both descriptors; our copy of its socket is closed."""
    with theirs:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        fds = (theirs.fileno(), board.fd)
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                module,
                "--fd",
                str(fds[0]),
                "--board-fd",
                str(fds[1]),
                "--log-level",
                level,
                "--log-format",
                log_format_in_use(),
            ],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C on a terminal is for us alone: we end the engine
            env=os.environ | _ENGINE_ENVIRONMENT,
        )
