"""Grammars are checked before anything is queued: off the event loop, within bounds of time and number."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from legato.core.errors import ConfigError, OverloadedError
from legato.modelfiles.tokenizer_file import keep_tokenizer
from legato.tokenization.grammar_helper import GrammarHelper
from legato.tokenization.tokenizer import Tokenizer

MAX_WAIT_S = 30.0  # for one check, those before it, and at the first for the start of the helper
MAX_CHECKS = 1024  # of different grammars, running and waiting
RETRY_S = 1.0
CACHE_BYTES = 4 * 2**20  # of the texts of grammars that were found good


class GrammarChecker:
    """Finds out whether the engine can build a grammar, by building it in a helper's process. For one model.

    file  the tokenizer.json that helper and engine read; written here when a .gguf file brings none
    """

    def __init__(self, tokenizer: Tokenizer, file: Path) -> None:
        self._tokenizer = tokenizer
        self._file = file
        self._helper: GrammarHelper | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-check")
        self._lock = threading.Lock()  # of the two below
        self._checks: dict[str, Future[str]] = {}  # each for all who ask for it meanwhile
        self._good = _TextCache(CACHE_BYTES)

    async def check(self, grammar: str, eos_ids: Iterable[int]) -> str:
        """The grammar as llguidance reads it, whether it was written so or in GBNF.

        Raises RequestError, of the field `grammar`: with llguidance's reason, because it takes too long, or
        because no grammar can hold this model; OverloadedError when many wait to be checked; ConfigError.
        """
        with self._lock:
            if (known := self._good.get(grammar)) is not None:
                return known
            if grammar not in self._checks:
                if len(self._checks) >= MAX_CHECKS:
                    raise _overloaded()
                self._checks[grammar] = self._thread.submit(self._check, grammar, frozenset(eos_ids))
            result = asyncio.wrap_future(self._checks[grammar])
        result.add_done_callback(_look_at)
        await asyncio.wait({result}, timeout=MAX_WAIT_S)
        if not result.done():
            raise _overloaded()
        return result.result()

    def _check(self, grammar: str, eos_ids: frozenset[int]) -> str:
        try:
            if self._helper is None:
                self._keep_tokenizer()
                self._helper = GrammarHelper(self._file, eos_ids)
            checked = self._helper.build(grammar)
        except BaseException:
            with self._lock:
                del self._checks[grammar]
            raise
        with self._lock:
            del self._checks[grammar]
            self._good.put(grammar, checked)
        return checked

    def _keep_tokenizer(self) -> None:
        try:
            if not self._file.is_file():
                keep_tokenizer(self._file, self._tokenizer.to_json())
        except OSError as error:
            raise ConfigError(
                f"{self._file} cannot be written ({error.strerror or error}), and the engine needs it to hold"
                " answers to a grammar; set LEGATO_HOME to a folder that can be written"
            ) from error


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


def _overloaded() -> OverloadedError:
    return OverloadedError("many grammars are being checked; try again soon", retry_after_s=RETRY_S)
