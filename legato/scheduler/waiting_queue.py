"""Requests that hold no row and no page yet, by priority, then arrival."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from legato.core.request import Request


def _age_key(request: Request) -> tuple[int, int]:
    return request.age_key


class WaitingQueue:
    """Sorted by (priority, arrival): a preempted request comes back to the place that its arrival gave it."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0  # of all that wait
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_age_key)
        self.num_prompt_tokens += request.prompt_len

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, request.age_key, key=_age_key)
        assert self._requests[index] is request
        del self._requests[index]
        self.num_prompt_tokens -= request.prompt_len

    def first(self, count: int) -> list[Request]:
        """The `count` requests to be served first, or all when there are fewer."""
        return self._requests[:count]
