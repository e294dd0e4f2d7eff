"""Mixed load with faults: clients of every kind at once, beside somebody who kills and stops engines."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from tests.e2e.conftest import Server
from tests.soak.calls import (
    BAD_BODIES,
    Call,
    answers_in,
    encode,
    error_code,
    exchange,
    random_call,
    stalled_connection,
)
from tests.soak.vitals import engine_pid

NUM_CALLS = 40
NUM_STEADY = 8
BURST = 120  # calls at once: more than run and wait
UNREAD = Call(
    "/v1/completions",
    {"prompt": "a", "n": 8, "max_tokens": 400, "logprobs": 20, "temperature": 0, "ignore_eos": True},
)
EXPECTED_CODES = {"queue_full"}  # what a client may be told instead of its answer


class Load:
    """Runs in one event loop; `outcomes` counts what clients saw, `faults` lists what none may see."""

    def __init__(self, server: Server, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self._server = server
        self._random = Random(seed)
        self._calls = [random_call(self._random) for _ in range(NUM_CALLS)]
        self._right: list[list[tuple[str, str]]] = []

    async def learn(self) -> None:
        """The answers of an undisturbed server."""
        for call in self._calls:
            status, body = await exchange(self._server.port, call.encoded(stream=False))
            if status != 200:
                raise AssertionError(f"{call} was answered by {status}: {body!r}")
            self._right.append(answers_in(body, stream=False))

    async def run(self, seconds: float) -> None:
        """Load and faults for so long; then nothing of it runs any more."""
        is_over = asyncio.Event()
        kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [self._call_once] * NUM_STEADY
        kinds += [self._leave, self._stall, self._send_rubbish, self._overload, self._break_engine]
        clients = [asyncio.create_task(self._repeat(kind, is_over)) for kind in kinds]
        await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        is_over.set()
        await asyncio.gather(*clients)

    async def replay(self) -> None:
        """Every call once, one after the other."""
        for index in range(NUM_CALLS):
            await self._check(index, stream=index % 2 == 0)

    async def _repeat(self, kind: Callable[[], Coroutine[Any, Any, None]], is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await kind()

    async def _call_once(self) -> None:
        await self._check(self._random.randrange(NUM_CALLS), stream=self._random.random() < 0.7)

    async def _check(self, index: int, *, stream: bool) -> None:
        status, body = await exchange(self._server.port, self._calls[index].encoded(stream=stream))
        kind = "stream" if stream else "plain"
        if status == 200 and not error_code(body):
            self.outcomes[f"{kind} finished"] += 1
            try:
                is_right = answers_in(body, stream=stream) == self._right[index]
            except ValueError:
                is_right = False
            if not is_right:
                self.faults.append(f"{self._calls[index]}: not the answers of before: {body[-500:]!r}")
        elif (code := error_code(body)) in EXPECTED_CODES:
            self.outcomes[f"{kind} {status} {code}"] += 1
        else:
            self.faults.append(f"{self._calls[index]}: {status} {code} {body[-300:]!r}")

    async def _leave(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        writer.write(self._random.choice(self._calls).encoded(stream=self._random.random() < 0.5))
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self._random.random()):
                await reader.read()
        writer.close()
        self.outcomes["left"] += 1

    async def _stall(self) -> None:
        stream = self._random.random() < 0.7
        connection = await asyncio.to_thread(
            stalled_connection, self._server.port, UNREAD.encoded(stream=stream)
        )
        with connection:
            await asyncio.sleep(10)
        self.outcomes["read nothing"] += 1

    async def _send_rubbish(self) -> None:
        body = self._random.choice(BAD_BODIES)
        status, answer = await exchange(self._server.port, encode("/v1/completions", body))
        if not 400 <= status < 500:
            self.faults.append(f"bad body {body[:80]!r}: {status} {answer[:300]!r}")
        self.outcomes["bad body refused"] += 1
        await asyncio.sleep(0.1)

    async def _overload(self) -> None:
        await asyncio.sleep(self._random.uniform(5, 20))
        await asyncio.gather(*(self._call_once() for _ in range(BURST)))
        self.outcomes["bursts"] += 1

    async def _break_engine(self) -> None:
        await asyncio.sleep(self._random.uniform(4, 15))
        pid = engine_pid(self._server.process.pid)
        if pid is None:
            return
        how = self._random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
        os.kill(pid, how)
        self.outcomes[f"engine {how.name}"] += 1
