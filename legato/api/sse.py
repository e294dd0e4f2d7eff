"""Server-Sent Events: payloads as they come, an error as an event, an end that clients know."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from legato.api.answers.plain import until_disconnect
from legato.api.errors import ErrorAnswer, describe
from legato.api.json_text import encode_line
from legato.core.background import cancel_and_wait
from legato.frontend.generator import TextStream

HEARTBEAT_S = 15.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFormat:
    """How an API writes its events; as it stands, OpenAI's of chat and completions.

    is_named  a line `event: ` with the payload's own `type` stands before its data
    fault     the payload that tells of an error
    ping      sent while there is nothing to say
    end       sent after the last event, also after an error
    """

    is_named: bool = False
    fault: Callable[[ErrorAnswer], Mapping[str, Any]] = ErrorAnswer.body
    ping: bytes = PING
    end: bytes = DONE

    def encode(self, payload: Mapping[str, Any]) -> bytes:
        name = f"event: {payload['type']}\n".encode() if self.is_named else b""
        return name + encode_event(payload)


OPENAI_EVENTS = EventFormat()


class EventStream(Response):
    """Sends each payload as an event; the head goes out at once, so `stream` must have been accepted.

    payloads   JSON objects; what they raise becomes a last event, the format's `fault`
    stream     what feeds them: aborted when the client leaves or the answer ends early
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        payloads: AsyncGenerator[Mapping[str, Any], None],
        stream: TextStream,
        *,
        format: EventFormat = OPENAI_EVENTS,
        headers: Mapping[str, str] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._payloads = payloads
        self._stream = stream
        self._format = format
        self._heartbeat_s = heartbeat_s
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(until_disconnect(receive))
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async with aclosing(self._events(gone, scope["state"]["request_id"])) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # the client left while we wrote to it
        finally:
            await asyncio.shield(self._close(gone))

    async def _events(self, gone: asyncio.Task[None], request_id: str) -> AsyncGenerator[bytes, None]:
        """Encoded events and heartbeats, until the end or until the client has `gone`."""
        while True:
            upcoming = asyncio.ensure_future(anext(self._payloads, None))
            try:
                while not upcoming.done():
                    await asyncio.wait(
                        (upcoming, gone), timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if gone.done():
                        return
                    if not upcoming.done():
                        yield self._format.ping
                payload = upcoming.result()
            except Exception as error:
                yield self._format.encode(self._format.fault(describe(error, request_id)))
                break
            finally:
                if not upcoming.done():
                    await cancel_and_wait(upcoming)
            if payload is None:
                break
            yield self._format.encode(payload)
        if self._format.end:
            yield self._format.end

    async def _close(self, gone: asyncio.Task[None]) -> None:
        await self._payloads.aclose()
        await self._stream.aclose()
        await cancel_and_wait(gone)


def encode_event(payload: Mapping[str, Any]) -> bytes:
    """One event of unnamed type."""
    return b"data: " + encode_line(payload) + b"\n\n"
