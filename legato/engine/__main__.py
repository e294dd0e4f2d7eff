"""Entry of the engine process: handshake, load the model, run the loop. Started by `ipc/supervisor.py`."""

import argparse
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from legato.core.errors import LegatoError, brief
from legato.engine.loop import run
from legato.ipc.channel import Channel, ChannelClosedError, engine_end
from legato.ipc.messages import Progress, Ready, Shutdown, Start, StartFailed, ToEngine
from legato.ipc.progress_board import ProgressBoard
from legato.observability.logs import set_up_logging

BEAT_S = 0.2

logger = logging.getLogger("legato.engine")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m legato.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="socket to the API process, inherited")
    parser.add_argument("--board-fd", type=int, required=True, help="memory of the progress board, inherited")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="text")
    arguments = parser.parse_args()
    set_up_logging(arguments.log_level, "engine", arguments.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the API process, which then tells us
    channel = engine_end(socket.socket(fileno=arguments.fd))
    try:
        reason = serve(channel, ProgressBoard(arguments.board_fd))
    except ChannelClosedError:
        reason = "the API process is gone"
    logger.info("end: %s", reason)
    return 0


def serve(channel: Channel[ToEngine], board: ProgressBoard) -> str:
    """Load what the first message asks for and serve it; returns the reason for the end."""
    started = time.perf_counter()
    start, *early = channel.receive()  # requests may come before the model is loaded
    if isinstance(start, Shutdown):
        return "shutdown asked for"
    if not isinstance(start, Start):
        raise TypeError(f"the first message must be Start, not {type(start).__name__}")

    def report(stage: str, detail: str, seconds: float) -> None:
        channel.send([Progress(stage=stage, detail=detail, seconds=seconds)])

    try:
        with beating(board):
            # here, so that the imports count as a stage
            from legato.engine.assembly import load_engine, without_lost_recording

            report("imports", "numpy and the engine", time.perf_counter() - started)
            config = without_lost_recording(start.config) if start.is_second else start.config
            engine = load_engine(config, report, board)
    except (LegatoError, OSError) as error:
        channel.send([StartFailed(error=str(error))])
        return "the start failed"  # the API process says why
    except (MemoryError, ChannelClosedError):
        raise  # the next engine may have more memory, and somebody to tell
    except Exception as error:
        if start.is_second:
            raise  # one has worked: the next may again
        # a fault of our own, which another engine would have as well
        logger.exception("%s could not be loaded", start.config.model)
        reason = brief(f"{type(error).__name__}: {error}")
        text = f"{start.config.model}: the model could not be loaded ({reason}); see the log"
        channel.send([StartFailed(error=text)])
        return "the start failed"
    channel.send(
        [
            Ready(
                max_model_len=engine.max_model_len,
                vocab_size=engine.core.limits.vocab_size,
                eos_ids=sorted(engine.core.eos_ids),
                num_pages=engine.cache.num_pages,
                page_size=engine.cache.page_size,
                numeric_mode=engine.numeric_mode,
                scheduler=engine.core.scheduler.config,
            ),
            engine.core.stats(),
        ]
    )
    try:
        return run(engine.core, channel, early)
    finally:
        engine.core.close()


@contextmanager
def beating(board: ProgressBoard) -> Iterator[None]:
    """Let the board move as long as this process does: loading has no steps that would."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            board.end()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
