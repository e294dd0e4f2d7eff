"""Grammars are checked before anything is queued: off the event loop, within bounds of time and number."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from legato.core.background import in_own_thread
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
        self._lock = threading.Lock()  # of all below
        self._lines = _Lines()
        self._running: _Check | None = None
        self._has_thread = False  # while there is something to check
        self._good = _TextCache(CACHE_BYTES)

    async def check(self, grammar: str, eos_ids: Iterable[int], tenant: str = "") -> str:
        """The grammar as llguidance reads it, whether it was written so or in GBNF.

        The helper's time is shared fairly between tenants; a check that nobody waits for is not begun.
        Raises RequestError, of the field `grammar`: with llguidance's reason, because it takes too long, or
        because no grammar can hold this model; OverloadedError when many wait to be checked; ConfigError.
        """
        with self._lock:
            if (known := self._good.get(grammar)) is not None:
                return known
            check = self._find_or_add(grammar, frozenset(eos_ids), tenant)
            check.num_asking += 1
            result = asyncio.wrap_future(check.result)
        result.add_done_callback(_look_at)
        try:
            await asyncio.wait({result}, timeout=MAX_WAIT_S)
        finally:
            with self._lock:
                check.num_asking -= 1
                if check.num_asking == 0:
                    self._lines.remove(check)
        if not result.done():
            raise _overloaded()
        return result.result()

    def close(self) -> None:
        """End the helper; what it checks still cannot be checked."""
        if self._helper is not None:
            self._helper.close()

    def _find_or_add(self, grammar: str, eos_ids: frozenset[int], tenant: str) -> "_Check":
        """The check that all who ask for it meanwhile share. Raises OverloadedError."""
        if self._running is not None and self._running.grammar == grammar:
            return self._running
        if (known := self._lines.find(tenant, grammar)) is not None:
            return known
        # as in the engine's queue, those who have less than their part of it are never locked out
        num_own = self._lines.num_of(tenant) + (self._running is not None and self._running.tenant == tenant)
        num_all = len(self._lines) + (self._running is not None)
        if num_all >= MAX_CHECKS and num_own * self._lines.num_tenants_with(tenant) >= MAX_CHECKS:
            raise _overloaded()
        check = _Check(tenant, grammar, eos_ids)
        self._lines.add(check)
        if not self._has_thread:
            self._has_thread = True
            in_own_thread("grammar-check", self._check_all)  # which no exit waits for
        return check

    def _check_all(self) -> None:
        while (check := self._next()) is not None:
            since = time.monotonic()
            try:
                checked = self._check(check)
            except BaseException as error:
                self._done(check, time.monotonic() - since)
                check.result.set_exception(error)
            else:
                self._done(check, time.monotonic() - since, checked)
                check.result.set_result(checked)

    def _next(self) -> "_Check | None":
        with self._lock:
            self._running = self._lines.take()
            self._has_thread = self._running is not None
            return self._running

    def _done(self, check: "_Check", seconds: float, checked: str | None = None) -> None:
        with self._lock:
            self._running = None
            self._lines.charge(check.tenant, seconds)
            if checked is not None:
                self._good.put(check.grammar, checked)

    def _check(self, check: "_Check") -> str:
        with self._lock:
            if (known := self._good.get(check.grammar)) is not None:  # another tenant had it checked
                return known
        if self._helper is None:
            self._keep_tokenizer()
            self._helper = GrammarHelper(self._file, check.eos_ids)
        return self._helper.build(check.grammar)

    def _keep_tokenizer(self) -> None:
        try:
            if not self._file.is_file():
                keep_tokenizer(self._file, self._tokenizer.to_json())
        except OSError as error:
            raise ConfigError(
                f"{self._file} cannot be written ({error.strerror or error}), and the engine needs it to hold"
                " answers to a grammar; set LEGATO_HOME to a folder that can be written"
            ) from error


@dataclass(slots=True, eq=False)
class _Check:
    """A grammar to be checked; num_asking wait for the result."""

    tenant: str
    grammar: str
    eos_ids: frozenset[int]
    num_asking: int = 0
    result: "Future[str]" = field(default_factory=Future)


class _Lines:
    """The checks that wait, a line for each tenant. First is who has had least time since others wait too.

    Who had nothing to check for a while has saved up nothing: it begins where the last one served stood.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, _Check]] = {}  # none of them is empty
        self._spent_s: dict[str, float] = {}  # as many as there are keys
        self._last_s = 0.0  # of the one served last, when it was chosen

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def num_of(self, tenant: str) -> int:
        return len(self._lines.get(tenant, ()))

    def num_tenants_with(self, tenant: str) -> int:
        return len(self._lines) + (tenant not in self._lines)

    def find(self, tenant: str, grammar: str) -> _Check | None:
        return self._lines.get(tenant, {}).get(grammar)

    def add(self, check: _Check) -> None:
        if check.tenant not in self._lines:
            self._lines[check.tenant] = {}
            self._spent_s[check.tenant] = max(self._spent_s.get(check.tenant, 0.0), self._last_s)
        self._lines[check.tenant][check.grammar] = check

    def remove(self, check: _Check) -> None:
        """Harmless when it waits no longer."""
        if self.find(check.tenant, check.grammar) is check:
            del self._lines[check.tenant][check.grammar]
            if not self._lines[check.tenant]:
                del self._lines[check.tenant]

    def take(self) -> _Check | None:
        if not self._lines:
            return None
        tenant = min(self._lines, key=self._spent_s.__getitem__)
        self._last_s = self._spent_s[tenant]
        check = next(iter(self._lines[tenant].values()))
        self.remove(check)
        return check

    def charge(self, tenant: str, seconds: float) -> None:
        self._spent_s[tenant] += seconds


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
