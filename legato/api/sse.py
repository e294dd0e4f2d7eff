"""Server-Sent Events: payloads as they come, an error as an event, an end that clients know."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from legato.api.answers.plain import cancel_and_wait, until_disconnect
from legato.api.errors import describe
from legato.frontend.generator import TextStream

HEARTBEAT_S = 15.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

# JSON may hold these as they are, but clients that split text into lines take them for line ends.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class EventStream(Response):
    """Sends each payload as an event; the head goes out at once, so `stream` must have been accepted.

    payloads   JSON objects; what they raise becomes a last event `{"error": …}`
    stream     what feeds them: aborted when the client leaves or the answer ends early
    has_done   end with `data: [DONE]`, also after an error
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        payloads: AsyncGenerator[Mapping[str, Any], None],
        stream: TextStream,
        *,
        has_done: bool = True,
        headers: Mapping[str, str] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._payloads = payloads
        self._stream = stream
        self._has_done = has_done
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
                        yield PING
                payload = upcoming.result()
            except Exception as error:
                yield encode_event(describe(error, request_id).body())
                break
            finally:
                if not upcoming.done():
                    await cancel_and_wait(upcoming)
            if payload is None:
                break
            yield encode_event(payload)
        if self._has_done:
            yield DONE

    async def _close(self, gone: asyncio.Task[None]) -> None:
        await self._payloads.aclose()
        await self._stream.aclose()
        await cancel_and_wait(gone)


def encode_event(payload: Mapping[str, Any]) -> bytes:
    """One event: its JSON stands on one line, for every notion of a line."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text.translate(_LINE_ENDS)}\n\n".encode()
