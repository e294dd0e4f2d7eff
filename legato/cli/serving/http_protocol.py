"""uvicorn's HTTP/1.1, which reads no body that comes in crumbs: each costs as much as a big piece."""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CRUMBS = 4096  # pieces of a body whose mean is below MIN_PIECE_BYTES
MIN_PIECE_BYTES = 64


class WholesaleConnection(h11.Connection):
    """Counts the pieces of each body, chunks mostly; uvicorn joins them, so nothing above can count them."""

    _num_pieces = 0
    _body_bytes = 0

    def next_event(self) -> Any:
        """The next event. Raises h11.RemoteProtocolError at a body in crumbs."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            self._body_bytes += len(event.data)
            if self._num_pieces > MAX_CRUMBS and self._body_bytes < MIN_PIECE_BYTES * self._num_pieces:
                raise h11.RemoteProtocolError("the body comes in too many small pieces")
        return event


class WholesaleProtocol(H11Protocol):
    """Answers a body in crumbs with 400 and closes the connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limit = self.config.h11_max_incomplete_event_size
        self.conn = WholesaleConnection(h11.SERVER, *([] if limit is None else [limit]))

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer is under way or out: another would be none
            self.transport.close()
