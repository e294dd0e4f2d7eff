"""One request to an ASGI app, driven by hand: the test decides when the client leaves."""

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message


class AsgiCall:
    """Starts at once, in the running loop; `task` ends when the app has."""

    def __init__(self, app: ASGIApp, path: str, body: Any = None, *, client: str = "127.0.0.1") -> None:
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._to_receive: asyncio.Queue[Message] = asyncio.Queue()
        self._to_receive.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": (client, 50000),
            "server": ("127.0.0.1", 8000),
        }
        self.task = asyncio.create_task(app(scope, self._to_receive.get, self._sent.put))

    def leave(self) -> None:
        """The client closes its connection."""
        self._to_receive.put_nowait({"type": "http.disconnect"})

    async def message(self) -> Message:
        """The next message that the app sends."""
        return await self._sent.get()

    async def text(self) -> str:
        """The next piece of the body."""
        message = await self.message()
        assert message["type"] == "http.response.body"
        return str(message["body"], "utf-8")

    @property
    def num_unread(self) -> int:
        return self._sent.qsize()
