"""The engine's end of the grammar worker: starts it with the first grammar, and again when it has died."""

import contextlib
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from legato.ipc.channel import Channel, ChannelClosedError
from legato.sampling.grammar_messages import Advance, Begin, FromWorker, Mask, NoMask, Prepare, Prepared

END_S = 5.0  # a worker whose engine hangs up ends at once; else it is killed


class NoMaskError(Exception):
    """A row's grammar leaves it no next token; the text says why."""


class WorkerGoneError(Exception):
    """The worker has died. Who asks again, with Begin, gets another one."""


class GrammarClient:
    """Questions to the worker. For any thread."""

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
            return self._live_worker().prepare(grammar)

    def begin(self, row: int, grammar: str, output_ids: Sequence[int]) -> "Future[bytes]":
        """The row has another owner; the mask of the token after output_ids, as in Mask.

        The future raises NoMaskError or WorkerGoneError.
        """
        ticket = next(self._tickets)
        message = Begin(ticket=ticket, row=row, grammar=grammar, output_ids=list(output_ids))
        with self._lock:
            [mask] = self._live_worker().ask([message])
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
        if self._worker is None or self._worker.is_gone:
            self._worker = _RunningWorker(self._arguments)
            weakref.finalize(self, self._worker.end)
        return self._worker


class _RunningWorker:
    """A process, and who waits for its answers. It is asked under the client's lock."""

    def __init__(self, arguments: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "legato.sampling.grammar_worker", str(theirs.fileno())]
            self.process = subprocess.Popen(
                [*command, *arguments], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._channel: Channel[FromWorker] = Channel(ours, FromWorker)
        self.rows: set[int] = set()  # those that have begun here
        self._masks: dict[int, Future[bytes]] = {}
        self._prepared: dict[str, Future[None]] = {}
        self._reader = threading.Thread(target=self._read, name="grammar-reader", daemon=True)
        self.is_gone = False
        self._reader.start()

    def prepare(self, grammar: str) -> "Future[None]":
        if (prepared := self._prepared.get(grammar)) is not None:
            return prepared
        prepared = self._prepared[grammar] = Future()
        with contextlib.suppress(ChannelClosedError):  # the reader sees it too
            self._channel.send([Prepare(grammar=grammar)])
        self._settle_if_gone()
        return prepared

    def ask(self, messages: Sequence[Begin | Advance]) -> "list[Future[bytes]]":
        masks: list[Future[bytes]] = [Future() for _ in messages]
        self.rows.update(message.row for message in messages if isinstance(message, Begin))
        self._masks.update({message.ticket: mask for message, mask in zip(messages, masks, strict=True)})
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(messages)
        self._settle_if_gone()
        return masks

    def end(self) -> None:
        self._channel.hang_up()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self._channel.close()

    def _read(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    self._take(message)
        except ChannelClosedError:
            self.is_gone = True
            self._settle_if_gone()
            self.process.wait()  # leaves no zombie

    def _take(self, message: FromWorker) -> None:
        match message:
            case Prepared(grammar=grammar):
                self._prepared.pop(grammar).set_result(None)
            case Mask(ticket=ticket, bits=bits):
                self._masks.pop(ticket).set_result(bits)
            case NoMask(ticket=ticket, reason=reason):
                self._masks.pop(ticket).set_exception(NoMaskError(reason))

    def _settle_if_gone(self) -> None:
        """Nobody answers any more. Called by the reader at the end, and by those who may have come later."""
        while self.is_gone and self._masks:
            with contextlib.suppress(KeyError):
                self._masks.popitem()[1].set_exception(WorkerGoneError())
        while self.is_gone and self._prepared:
            with contextlib.suppress(KeyError):
                self._prepared.popitem()[1].set_result(None)


def _failed(error: Exception) -> "Future[bytes]":
    future: Future[bytes] = Future()
    future.set_exception(error)
    return future
