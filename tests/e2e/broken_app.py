"""The app over a client that matches answers by order, as if it had one queue of results without ids."""

import msgspec

from legato.api.asgi import app_from_environment
from legato.ipc.messages import TokenOutput
from legato.ipc.pending import PendingRequests
from legato.ipc.reply_router import Reply, Sink

by_id = PendingRequests.record


def by_order(self: PendingRequests, message: Reply) -> tuple[Sink, Reply] | None:
    """Whatever comes is taken for news of who has waited longest."""
    first = next(iter(self._requests.values()), None)
    if first is None:
        return None
    message = msgspec.structs.replace(message, request_id=first.request.request_id)
    if isinstance(message, TokenOutput):
        message = msgspec.structs.replace(message, index=len(first.output_ids))
    return by_id(self, message)


PendingRequests.record = by_order  # type: ignore[method-assign]
app = app_from_environment()
