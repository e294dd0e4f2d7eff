"""The engine's end of the grammar worker: starts it with the first grammar, and again when it has died."""

import contextlib
import logging
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from legato.ipc.channel import Channel, ChannelClosedError, encode_frame
from legato.sampling.grammar_messages import Advance, Begin, FromWorker, Mask, NoMask, Prepare, Prepared

logger = logging.getLogger(__name__)

END_S = 5.0  # a worker whose engine hangs up ends at once; else it is killed


class NoMaskError(Exception):
    """A row's grammar leaves it no next token; the text says why."""


class WorkerGoneError(Exception):
    """The worker has died. Who asks again, with Begin, gets another one.

    was_alone  it had nothing else to answer then
    """

    def __init__(self, *, was_alone: bool = False) -> None:
        super().__init__()
        self.was_alone = was_alone


class GrammarClient:
    """Questions to the worker. For any thread; none of them waits for it."""

    def __init__(self, tokenizer: Path, eos_ids: Iterable[int]) -> None:
        self._arguments = [str(tokenizer), *map(str, sorted(eos_ids))]
        self._lock = threading.Lock()
        self._worker: _RunningWorker | None = None
        self._tickets = count()

    @property
    def pid(self) -> int | None:
        """The worker's, once there was need of one."""
        return None if self._worker is None else self._worker.process.pid

    def prepare(self, grammar: str) -> "Future[None]":
        """Done when the grammar is built, or cannot be: whoever begins with it is told."""
        with self._lock:
            try:
                return self._live_worker().prepare(grammar)
            except NoMaskError:
                done: Future[None] = Future()
                done.set_result(None)
                return done

    def begin(self, row: int, grammar: str, output_ids: Sequence[int]) -> "Future[bytes]":
        """The row has another owner; the mask of the token after output_ids, as in Mask.

        The future raises NoMaskError or WorkerGoneError.
        """
        ticket = next(self._tickets)
        message = Begin(ticket=ticket, row=row, grammar=grammar, output_ids=list(output_ids))
        with self._lock:
            try:
                [mask] = self._live_worker().ask([message])
            except NoMaskError as error:
                return _failed(error)
        return mask

    def advance(self, new_ids: Sequence[tuple[int, int]]) -> "list[Future[bytes]]":
        """(row, token id): the rows have got these tokens; the masks of the next ones, as from begin().

        WorkerGoneError is for rows that began with a worker before this one.
        """
        messages = [Advance(ticket=next(self._tickets), row=row, token_id=each) for row, each in new_ids]
        with self._lock:
            known = self._worker.rows if self._worker is not None else set()
            asked = [message for message in messages if message.row in known]
            masks = dict(zip(asked, self._worker.ask(asked), strict=True)) if self._worker and asked else {}
        return [masks.get(message) or _failed(WorkerGoneError()) for message in messages]

    def _live_worker(self) -> "_RunningWorker":
        """Raises NoMaskError when none can be started."""
        if self._worker is None or self._worker.is_gone:
            if self._worker is not None:
                self._worker.close()
            try:
                self._worker = _RunningWorker(self._arguments)
            except (OSError, RuntimeError) as error:  # no memory, process, descriptor or thread is to be had
                logger.error("the grammar worker cannot be started: %s", error)
                raise NoMaskError(
                    f"the process that follows grammars cannot be started ({error}): try again later, or"
                    " give the server's machine more memory, processes or open files"
                ) from error
            weakref.finalize(self, self._worker.end)
        return self._worker


class _RunningWorker:
    """A process, and who waits for its answers. It is asked under the client's lock.

    One thread reads, one writes: nobody who asks is held up by a worker that is too busy to read.
    Raises OSError or RuntimeError when the process or a thread cannot be started.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self._channel: Channel[FromWorker] = Channel(ours, FromWorker)
        command = [sys.executable, "-m", "legato.sampling.grammar_worker", str(theirs.fileno()), *arguments]
        try:
            with theirs:
                self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        except OSError:
            self._channel.close()
            raise
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()  # frames; None ends the writer
        self.rows: set[int] = set()  # those that have begun here
        self._masks: dict[int, Future[bytes]] = {}
        self._prepared: dict[str, Future[None]] = {}
        self._was_alone = False  # when it died, as WorkerGoneError has it
        self.is_gone = False
        self._writer = threading.Thread(target=self._write, name="grammar-writer", daemon=True)
        self._reader = threading.Thread(target=self._read, name="grammar-reader", daemon=True)
        try:
            self._writer.start()
            self._reader.start()
        except RuntimeError:
            self._outbox.put(None)
            self._channel.close()
            self.process.kill()
            self.process.wait()
            raise

    def prepare(self, grammar: str) -> "Future[None]":
        if (prepared := self._prepared.get(grammar)) is not None:
            return prepared
        prepared = self._prepared[grammar] = Future()
        self._outbox.put(encode_frame([Prepare(grammar=grammar)]))
        self._settle_if_gone()
        return prepared

    def ask(self, messages: Sequence[Begin | Advance]) -> "list[Future[bytes]]":
        masks: list[Future[bytes]] = [Future() for _ in messages]
        self.rows.update(message.row for message in messages if isinstance(message, Begin))
        self._masks.update({message.ticket: mask for message, mask in zip(messages, masks, strict=True)})
        self._outbox.put(encode_frame(messages))
        self._settle_if_gone()
        return masks

    def end(self) -> None:
        self._channel.hang_up()
        self._reader.join()
        self.close()

    def close(self) -> None:
        """Give the descriptor of one that is gone back."""
        self._channel.close()

    def _write(self) -> None:
        """Send what is put on the outbox."""
        try:
            while (frame := self._outbox.get()) is not None:
                self._channel.send_frame(frame)
        except ChannelClosedError:
            pass
        finally:
            self._channel.hang_up()  # the reader hears it

    def _read(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    self._take(message)
        except ChannelClosedError:
            pass
        except Exception:  # a fault of ours: whoever waits for a mask must hear of it
            logger.exception("the answers of the grammar worker cannot be read")
        finally:
            self._gone()

    def _gone(self) -> None:
        self._channel.hang_up()  # so that the writer sleeps on it no longer
        self._outbox.put(None)
        self._writer.join()
        self._was_alone = len(self._masks) + len(self._prepared) == 1
        self.is_gone = True
        self._settle_if_gone()
        try:
            self.process.wait(END_S)  # leaves no zombie
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _take(self, message: FromWorker) -> None:
        """Hand an answer on; a second one to the same question is no news."""
        match message:
            case Prepared(grammar=grammar):
                if (prepared := self._prepared.pop(grammar, None)) is not None:
                    prepared.set_result(None)
            case Mask(ticket=ticket, bits=bits):
                if (mask := self._masks.pop(ticket, None)) is not None:
                    mask.set_result(bits)
            case NoMask(ticket=ticket, reason=reason):
                if (mask := self._masks.pop(ticket, None)) is not None:
                    mask.set_exception(NoMaskError(reason))

    def _settle_if_gone(self) -> None:
        """Nobody answers any more. Called by the reader at the end, and by those who may have come later."""
        while self.is_gone and self._masks:
            with contextlib.suppress(KeyError):
                self._masks.popitem()[1].set_exception(WorkerGoneError(was_alone=self._was_alone))
        while self.is_gone and self._prepared:
            with contextlib.suppress(KeyError):
                self._prepared.popitem()[1].set_result(None)


def _failed(error: Exception) -> "Future[bytes]":
    future: Future[bytes] = Future()
    future.set_exception(error)
    return future
