"""The grammar worker: a process beside the engine that knows which tokens each row's grammar allows next.

`python -m legato.sampling.grammar_worker FD TOKENIZER_JSON EOS_ID...`, started by `grammar_client.py`. In a
process of its own, since llguidance reads a tokenizer without ever giving up the interpreter's lock.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from legato.core.errors import LegatoError
from legato.ipc.channel import Channel, ChannelClosedError
from legato.ipc.messages import Message
from legato.modelfiles.grammars import (
    MASK_CPU_S,
    TOO_SLOW,
    build_matcher,
    is_broken,
    open_token_table,
    reason_of,
)
from legato.sampling.grammar_messages import Advance, Begin, Mask, NoMask, Prepare, Prepared, ToWorker

logger = logging.getLogger("legato.grammar-worker")

MAX_KEPT = 64  # grammars whose matchers are kept to be copied
MAX_THREADS = 64  # one that is slow holds up no other
WATCH_S = 0.02  # while masks are computed
WORD_BYTES = 4


class Worker:
    """Answers each Begin and Advance with a Mask or NoMask, in whatever order they are done.

    A row's next question comes after the answer to its last one, so that no two threads meet at a matcher.
    """

    def __init__(self, channel: Channel[ToWorker], tokenizer: Path, eos_ids: frozenset[int]) -> None:
        self._channel = channel
        self._builder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="build")
        self._threads = ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="mask")
        self._table: Future[LLTokenizer] = self._builder.submit(open_token_table, tokenizer, eos_ids)
        self._built: OrderedDict[str, Future[LLMatcher]] = OrderedDict()  # none of them has read a token
        self._rows: dict[int, LLMatcher] = {}
        self._computing: dict[int, tuple[int, float]] = {}  # ticket -> CPU clock of its thread, its start

    def serve(self) -> None:
        """Until the engine is gone: ChannelClosedError."""
        while True:
            for message in self._channel.receive(timeout_s=WATCH_S if self._computing else None):
                match message:
                    case Prepare(grammar=grammar):
                        self._matcher(grammar).add_done_callback(partial(self._send_prepared, grammar))
                    case Begin():
                        self._threads.submit(self._answer, message, self._matcher(message.grammar))
                    case Advance():
                        self._threads.submit(self._answer, message)
            self._give_up_slow_ones()

    def _matcher(self, grammar: str) -> "Future[LLMatcher]":
        if grammar not in self._built:
            self._built[grammar] = self._builder.submit(self._build, grammar)
            if len(self._built) > MAX_KEPT:
                self._built.popitem(last=False)
        self._built.move_to_end(grammar)
        return self._built[grammar]

    def _build(self, grammar: str) -> LLMatcher:
        return build_matcher(self._table.result(), grammar)

    def _answer(self, message: Begin | Advance, built: "Future[LLMatcher] | None" = None) -> None:
        try:
            answer = self._mask(message.ticket, self._moved(message, built))
        except LegatoError as error:
            answer = NoMask(ticket=message.ticket, reason=f"the grammar cannot be used: {error}")
        except Exception:  # a fault of ours at one row's grammar; the engine must not wait for ever
            logger.exception("a grammar could not be followed")
            answer = NoMask(ticket=message.ticket, reason="the grammar cannot be used; the log says why")
        if answer is not None:
            self._send(answer)

    def _moved(self, message: Begin | Advance, built: "Future[LLMatcher] | None") -> LLMatcher:
        """The row's matcher, behind the tokens that have come."""
        if isinstance(message, Advance):
            self._rows[message.row].consume_token(message.token_id)
        else:
            assert built is not None
            matcher = self._rows[message.row] = built.result().deep_copy()
            if message.output_ids:
                matcher.consume_tokens(message.output_ids)
        return self._rows[message.row]

    def _mask(self, ticket: int, matcher: LLMatcher) -> Mask | NoMask | None:
        """None when it took too long, as the engine knows by now."""
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._computing[ticket] = clock, time.clock_gettime(clock)
        try:
            bits = matcher.compute_bitmask()
        finally:
            is_late = self._computing.pop(ticket, None) is None
        if is_late:
            return None
        if is_broken(matcher):
            reason = f"the grammar cannot be followed any further: {reason_of(matcher)}"
            return NoMask(ticket=ticket, reason=reason)
        return Mask(ticket=ticket, bits=bits + bytes(-len(bits) % WORD_BYTES))

    def _give_up_slow_ones(self) -> None:
        for ticket, (clock, start) in list(self._computing.items()):
            is_slow = time.clock_gettime(clock) - start > MASK_CPU_S
            if is_slow and self._computing.pop(ticket, None) is not None:
                self._send(NoMask(ticket=ticket, reason=f"the grammar cannot be followed: {TOO_SLOW}"))

    def _send_prepared(self, grammar: str, built: "Future[LLMatcher]") -> None:
        self._send(Prepared(grammar=grammar))

    def _send(self, message: Message) -> None:
        try:
            self._channel.send([message])
        except ChannelClosedError:
            os._exit(0)  # the engine is gone, and threads that still compute do so for nobody


def main() -> None:
    fd, tokenizer, *eos_ids = sys.argv[1:]
    channel: Channel[ToWorker] = Channel(socket.socket(fileno=int(fd)), ToWorker)
    try:
        Worker(channel, Path(tokenizer), frozenset(map(int, eos_ids))).serve()
    except ChannelClosedError:
        os._exit(0)


if __name__ == "__main__":
    main()
