"""Grammars are checked before anything is queued: in a thread, within bounds of time and number."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from legato.core.errors import ConfigError, ModelError, OverloadedError, RequestError
from legato.modelfiles.tokenizer_file import keep_tokenizer
from legato.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_CHECK_S = 2.0  # of one grammar; llguidance's own limits end the work soon after
MAX_WAIT_S = 10.0  # for the checks before it, and for the tokenizer's tokens at the first
MAX_CHECKS = 1024  # of different grammars, running and waiting
RETRY_S = 1.0
CACHE_BYTES = 4 * 2**20  # of the texts of grammars that were found good


@dataclass(frozen=True, slots=True)
class _Check:
    """One grammar's check, for all who ask for it meanwhile."""

    started: "Future[None]"
    result: "Future[str]"


class GrammarChecker:
    """Finds out whether the engine can build a grammar, by building it. For one model.

    file  the tokenizer.json that the engine reads; written here when a .gguf file brings none
    """

    def __init__(self, tokenizer: Tokenizer, file: Path) -> None:
        self._tokenizer = tokenizer
        self._file = file
        self._eos_ids: frozenset[int] = frozenset()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-check")
        self._lock = threading.Lock()  # of the two below
        self._checks: dict[str, _Check] = {}
        self._good = _TextCache(CACHE_BYTES)

    async def check(self, grammar: str, eos_ids: Iterable[int]) -> str:
        """The grammar as llguidance reads it, whether it was written so or in GBNF.

        Raises RequestError, of the field `grammar`: with llguidance's reason, because it takes too long, or
        because no grammar can hold this model; OverloadedError when many wait to be checked; ConfigError.
        """
        with self._lock:
            if (known := self._good.get(grammar)) is not None:
                return known
            self._eos_ids = frozenset(eos_ids)
            check = self._checks.get(grammar) or self._begin(grammar)
        started, result = asyncio.wrap_future(check.started), asyncio.wrap_future(check.result)
        result.add_done_callback(_look_at)
        await asyncio.wait({started}, timeout=MAX_WAIT_S)
        if not started.done():
            raise _overloaded()
        await asyncio.wait({result}, timeout=MAX_CHECK_S)
        if not result.done():
            raise RequestError(
                f"the grammar takes more than {MAX_CHECK_S:.0f} s to build; make it smaller or simpler",
                param="grammar",
                code="invalid_grammar",
            )
        return result.result()

    def _begin(self, grammar: str) -> _Check:
        if len(self._checks) >= MAX_CHECKS:
            raise _overloaded()
        started: Future[None] = Future()
        result = self._thread.submit(self._check, grammar, started)
        check = self._checks[grammar] = _Check(started, result)
        return check

    def _check(self, grammar: str, started: "Future[None]") -> str:
        try:
            checked = self._built(grammar, started)
        except BaseException:
            with self._lock:
                del self._checks[grammar]
            raise
        with self._lock:
            del self._checks[grammar]
            self._good.put(grammar, checked)
        return checked

    def _built(self, grammar: str, started: "Future[None]") -> str:
        try:
            table = self._table
        except ModelError as error:
            raise RequestError(str(error), param="grammar", code="unsupported") from error
        finally:
            started.set_result(None)
        from legato.modelfiles.grammars import build_matcher  # see there why not before

        text = grammar if grammar.lstrip().startswith("{") else _as_lark(grammar)
        build_matcher(table, text)
        return text

    @cached_property
    def _table(self) -> "LLTokenizer":
        try:
            if not self._file.is_file():
                keep_tokenizer(self._file, self._tokenizer.to_json())
        except OSError as error:
            raise ConfigError(
                f"{self._file} cannot be written ({error.strerror or error}), and the engine needs it to hold"
                " answers to a grammar; set LEGATO_HOME to a folder that can be written"
            ) from error
        from legato.modelfiles.grammars import open_token_table

        return open_token_table(self._file, self._eos_ids)


class _TextCache:
    """Texts by text, the ones that were not asked for longest forgotten first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._texts: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        if key in self._texts:
            self._texts.move_to_end(key)
        return self._texts.get(key)

    def put(self, key: str, text: str) -> None:
        self._texts[key] = text
        self._num_bytes += _num_bytes(key, text)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _num_bytes(*self._texts.popitem(last=False))


def _num_bytes(*texts: str) -> int:
    return sum(len(text.encode()) for text in texts)


def _look_at(result: "asyncio.Future[str]") -> None:
    """Of a check that nobody waits for any more, the outcome is no news."""
    if not result.cancelled():
        result.exception()


def _as_lark(grammar: str) -> str:
    from llguidance import grammar_from

    try:
        return grammar_from("grammar", grammar)
    except ValueError as error:
        raise RequestError(
            f"the grammar is neither Lark nor GBNF: {error}", param="grammar", code="invalid_grammar"
        ) from error


def _overloaded() -> OverloadedError:
    return OverloadedError("many grammars are being checked; try again soon", retry_after_s=RETRY_S)
