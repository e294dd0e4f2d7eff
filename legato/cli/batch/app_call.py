"""A request to an ASGI app in this process: no socket, and the same code as for one that came by HTTP."""

import asyncio
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message


@dataclass(slots=True)
class Reply:
    """What the app sent; names of headers are in small letters."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def post(app: ASGIApp, path: str, body: bytes) -> Reply:
    """Send a JSON body; cancelling ends the request in the engine too."""
    reply = Reply()
    unread = [body]

    async def receive() -> Message:
        if not unread:
            await asyncio.Event().wait()  # this client never leaves
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {
                str(name, "latin-1"): str(value, "latin-1") for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            reply.body += message.get("body", b"")

    await app(_scope(path), receive, send)
    return reply


def _scope(path: str) -> Message:
    return {
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
        "client": None,
        "server": None,
    }
