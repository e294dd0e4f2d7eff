"""A process that builds grammars to see whether they can be built: one without end is ended with it.

`python -m legato.tokenization.grammar_helper TOKENIZER_JSON EOS_ID...` reads grammars, a line of JSON each,
and answers with a line each: {"grammar": text} or {"error": reason, "code": code}. The first answer, {} or an
error, is for the tokenizer.
"""

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from legato.core.errors import ModelError, RequestError

MAX_CPU_S = 2  # of one grammar; the system counts in whole seconds, so it may be a second more
MAX_WALL_S = 20.0  # the same on a machine that has no time for us, and until it takes what it is sent
MAX_MEMORY_BYTES = 2 * 2**30  # of address space
END_S = 1.0  # between the end of its output and its own
IDLE_S = 600.0  # after so long without a grammar it ends; the next one starts another
INVALID = "invalid_grammar"


class GrammarHelper:
    """The caller's side. For one thread."""

    def __init__(self, file: Path, eos_ids: Iterable[int]) -> None:
        self._command = [sys.executable, "-m", __spec__.name, str(file), *map(str, eos_ids)]
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the process, also from another thread than the one that builds."""
        if self._process is not None:
            self._process.kill()

    def build(self, grammar: str) -> str:
        """The grammar as llguidance reads it. Raises RequestError with the reason why it cannot be built."""
        process = self._running()
        reply = self._ask(process, grammar)
        if reply is None and process.returncode == 0:  # it ended for want of work, just as this came
            reply = self._ask(self._running(), grammar)
        if reply is None:
            raise RequestError(
                f"the grammar takes more than {MAX_CPU_S} s or too much memory to build;"
                " make it smaller or simpler",
                param="grammar",
                code=INVALID,
            )
        if "error" in reply:
            raise RequestError(reply["error"], param="grammar", code=reply["code"])
        text: str = reply["grammar"]
        return text

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        return self._process

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, _end, process)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        ready = _receive(process)
        if ready is None or "error" in ready:
            _end(process)
            reason = "the process that checks grammars has not started; the log says why"
            raise RequestError((ready or {}).get("error", reason), param="grammar", code="unsupported")
        return process

    def _ask(self, process: "subprocess.Popen[bytes]", grammar: str) -> dict[str, Any] | None:
        """Its answer; None when it has ended instead."""
        try:
            is_sent = _send_to(process, json.dumps(grammar).encode() + b"\n")
            reply = _receive(process) if is_sent else None
        except BrokenPipeError:
            reply = None
        if reply is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that is stuck
                process.wait(END_S)  # it may be about to end by itself
            _end(process)
        return reply


def _send_to(process: "subprocess.Popen[bytes]", line: bytes) -> bool:
    """Whether the process has taken it. Raises BrokenPipeError."""
    assert process.stdin is not None
    unsent = memoryview(line)
    while unsent:
        if not _waits_for(process.stdin, select.POLLOUT, MAX_WALL_S):
            return False
        unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
    return True


def _receive(process: "subprocess.Popen[bytes]") -> dict[str, Any] | None:
    assert process.stdout is not None
    if not _waits_for(process.stdout, select.POLLIN, MAX_WALL_S):
        return None
    line = process.stdout.readline()
    reply: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
    return reply


def _waits_for(file: IO[bytes], event: int, seconds: float) -> bool:
    """Whether the event has come in time. Not by select(), which fails for descriptors from 1024 on."""
    waiting = select.poll()
    waiting.register(file, event)
    return bool(waiting.poll(seconds * 1000))


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def main() -> None:
    file, *eos_ids = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    from legato.modelfiles.grammars import open_token_table

    try:
        table = open_token_table(Path(file), map(int, eos_ids))
    except ModelError as error:
        _send({"error": str(error), "code": "unsupported"})
        return
    _send({})
    while _waits_for(sys.stdin.buffer, select.POLLIN, IDLE_S) and (line := sys.stdin.buffer.readline()):
        _limit(resource.RLIMIT_CPU, int(sum(os.times()[:2])) + MAX_CPU_S + 1)  # the system ends us there
        try:
            _send({"grammar": _built(table, json.loads(line))})
        except RequestError as error:
            _send({"error": str(error), "code": error.code})


def _built(table: Any, grammar: str) -> str:
    from legato.modelfiles.grammars import check_grammar

    text = grammar if grammar.lstrip().startswith("{") else _as_lark(grammar)
    check_grammar(table, text)
    return text


def _as_lark(grammar: str) -> str:
    from llguidance import grammar_from

    try:
        return grammar_from("grammar", grammar)
    except ValueError as error:
        raise RequestError(f"the grammar is neither Lark nor GBNF: {error}", code=INVALID) from error


def _limit(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _send(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
