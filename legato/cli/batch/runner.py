"""Sends the lines of a batch to the app, many at once, and writes a row for each as soon as it is done."""

import asyncio
from collections.abc import Callable, Iterator

from fastapi import FastAPI

from legato.api.service import ModelService
from legato.cli.batch.app_call import Reply, post
from legato.cli.batch.lanes import Lanes
from legato.cli.batch.lines import BadLine, KnownLine, Line
from legato.cli.batch.output import Output
from legato.cli.batch.rows import Row, answer_row, fault_row
from legato.cli.batch.tally import Tally
from legato.core.background import cancel_and_wait, in_own_thread

TRIED_AGAIN = frozenset({429, 503})  # the queue was full, or the engine died: the line may be innocent
CHANGED_HEADERS = {"x-legato-ignored": "ignored", "x-legato-adjusted": "adjusted"}

Tell = Callable[[str], None]


class BatchRun:
    """A batch under way.

    tell  takes a line for the user: a line of the input that failed, or fields that nobody knows
    """

    def __init__(
        self,
        app: FastAPI,
        service: ModelService,
        lines: Iterator[Line | BadLine | KnownLine],
        output: Output,
        tally: Tally,
        tell: Tell,
    ) -> None:
        self._app = app
        self._service = service
        self._lines = lines
        self._output = output
        self._tally = tally
        self._tell = tell
        self._reading = asyncio.Lock()
        self._lanes = Lanes()

    async def run(self, num_workers: int) -> None:
        """Answer every line, so many at once. Raises LegatoError when no engine or no output is left."""
        workers = [asyncio.create_task(self._work()) for _ in range(num_workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            await cancel_and_wait(*workers)

    async def _work(self) -> None:
        while (line := await self._next()) is not None:
            row = fault_row(line) if isinstance(line, BadLine) else await self._answer(line)
            self._output.write(row)
            self._tally.count(row, line.num_bytes)
            if row.is_failure:
                self._tell(f"line {line.number}{_called(row.custom_id)}: {row.complaint}")

    async def _next(self) -> Line | BadLine | None:
        """In a thread, since the input may be a pipe that has nothing yet."""
        async with self._reading:
            return await asyncio.wrap_future(in_own_thread("batch-reader", self._read))

    def _read(self) -> Line | BadLine | None:
        for line in self._lines:
            if not isinstance(line, KnownLine):
                return line
            self._tally.skip(line)
        return None

    async def _answer(self, line: Line) -> Row:
        """What cannot be had beside others is tried once more alone: then nobody else can be the reason."""
        async with self._lanes.side_by_side():
            reply = await self._send(line)
        if reply.status in TRIED_AGAIN:
            async with self._lanes.alone():
                reply = await self._send(line)
        self._tell_changes(line, reply)
        return answer_row(line, reply.status, reply.headers["x-request-id"], reply.body)

    async def _send(self, line: Line) -> Reply:
        await self._service.start()  # returns at once while the engine runs; raises when none ever will
        return await post(self._app, line.url, line.body)

    def _tell_changes(self, line: Line, reply: Reply) -> None:
        changes = [f"ignored: {', '.join(line.ignored)}"] if line.ignored else []
        changes += [
            f"{word}: {reply.headers[name]}"
            for name, word in CHANGED_HEADERS.items()
            if name in reply.headers
        ]
        if changes:
            self._tell(f"line {line.number}{_called(line.custom_id)}: {'; '.join(changes)}")


def _called(custom_id: str | None) -> str:
    return "" if custom_id is None else f" ({custom_id[:64]})"
