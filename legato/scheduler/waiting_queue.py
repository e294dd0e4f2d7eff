"""Requests that hold no row and no page yet: by priority, then the tenant's service, then arrival."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain

from legato.core.request import Request


def _age_key(request: Request) -> tuple[int, int]:
    return request.age_key


class WaitingQueue:
    """A line for each tenant, by (priority, arrival): a preempted request comes back to its place in it.

    service  of each tenant that may wait; of equal priority, who has had least goes first
    """

    def __init__(self, service: Mapping[str, int]) -> None:
        self.num_prompt_tokens = 0  # of all that wait
        self._service = service
        self._lines: dict[str, list[Request]] = {}  # none is empty
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._lines.values())

    @property
    def num_tenants(self) -> int:
        return len(self._lines)

    def of(self, tenant: str) -> list[Request]:
        """Those of one tenant, the first to be served first; read only."""
        return self._lines.get(tenant, [])

    def add(self, request: Request) -> None:
        insort(self._lines.setdefault(request.tenant, []), request, key=_age_key)
        self._len += 1
        self.num_prompt_tokens += request.prompt_len

    def remove(self, request: Request) -> None:
        line = self._lines[request.tenant]
        index = bisect_left(line, request.age_key, key=_age_key)
        assert line[index] is request
        del line[index]
        if not line:
            del self._lines[request.tenant]
        self._len -= 1
        self.num_prompt_tokens -= request.prompt_len

    def first(self, count: int) -> list[Request]:
        """The `count` requests to be served first, or all when there are fewer."""
        if len(self._lines) > 1:
            return self._first_by_turns(count)
        return next(iter(self._lines.values()), [])[:count]

    def _first_by_turns(self, count: int) -> list[Request]:
        """Each that is taken counts as service of its tenant before the next one is chosen."""
        heads = [
            (line[0].priority, self._service[tenant], line[0].arrival, tenant, 0)
            for tenant, line in self._lines.items()
        ]
        heapify(heads)
        chosen: list[Request] = []
        while heads and len(chosen) < count:
            _, service, _, tenant, index = heappop(heads)
            line = self._lines[tenant]
            chosen.append(line[index])
            if index + 1 < len(line):
                follower = line[index + 1]
                service += len(line[index].token_ids)
                heappush(heads, (follower.priority, service, follower.arrival, tenant, index + 1))
        return chosen
