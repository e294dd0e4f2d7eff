"""The calls that can be explained: all that run, and the latest of those that have ended."""

from collections import deque
from collections.abc import Iterable

from legato.api.explain.explained_call import ExplainedCall
from legato.core.errors import UnknownRequestError

MAX_ENDED_CALLS = 1024
MAX_BYTES = 4 * 2**20  # of what is kept of them, about
_BYTES_OF_CALL, _BYTES_OF_PART = 1024, 200

_Key = tuple[str | None, str]  # whose, and which name


class Explanations:
    """Finds a call by whose it is and by any of its names; of several with one name, the latest."""

    def __init__(self) -> None:
        self._by_name: dict[_Key, ExplainedCall] = {}
        self._ended: deque[tuple[ExplainedCall, tuple[_Key, ...], int]] = deque()
        self._num_bytes = 0

    def add(self, call: ExplainedCall, names: Iterable[str]) -> tuple[_Key, ...]:
        """A call has begun; give what this returns to end()."""
        keys = tuple((call.tenant, name) for name in names)
        self._by_name.update(dict.fromkeys(keys, call))
        return keys

    def end(self, call: ExplainedCall, keys: tuple[_Key, ...], now: float) -> None:
        """It has ended; the oldest of the others make room for it."""
        call.ended_at = now
        num_bytes = _BYTES_OF_CALL + _BYTES_OF_PART * call.num_parts
        self._ended.append((call, keys, num_bytes))
        self._num_bytes += num_bytes
        while len(self._ended) > MAX_ENDED_CALLS or self._num_bytes > MAX_BYTES:
            self._forget(*self._ended.popleft())

    def find(self, tenant: str | None, name: str) -> ExplainedCall:
        """Raises UnknownRequestError when no call of this tenant has, or has kept, that name."""
        call = self._by_name.get((tenant, name))
        if call is None:
            raise UnknownRequestError(
                f"no request {name[:128]!r} can be explained: it is unknown, or ended too long ago"
            )
        return call

    def _forget(self, call: ExplainedCall, keys: tuple[_Key, ...], num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        for key in keys:
            if self._by_name.get(key) is call:
                del self._by_name[key]
