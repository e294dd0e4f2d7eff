"""The app over a client that matches answers by order, as if it had one queue of results without ids."""

import msgspec

from legato.api.asgi import app_from_environment
from legato.ipc.messages import TokenOutput
from legato.ipc.pending import PendingRequests
from legato.ipc.reply_router import Reply, Sink

by_id = PendingRequests.record


def by_order(self: PendingRequests, message: Reply) -> tuple[Sink, Reply] | None:
    """Whatever tokens come are taken for those of who has waited longest."""
    first = next(iter(self._requests.values()), None)
    if first is None or not isinstance(message, TokenOutput):
        return by_id(self, message)
    name, index = first.request.request_id, len(first.output_ids)
    return by_id(self, msgspec.structs.replace(message, request_id=name, index=index))


PendingRequests.record = by_order  # type: ignore[method-assign]
app = app_from_environment()
