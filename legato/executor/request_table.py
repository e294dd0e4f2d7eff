"""The rows of running requests; a row indexes the token pool and the page table."""

from heapq import heappop, heappush


class RequestTable:
    """Hands out rows 0 .. size - 1, the lowest free one first. Source: the `TableManager` of mini-sglang."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size))  # a heap: sorted to begin with

    @property
    def available_size(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        if not self._free:
            raise AssertionError(f"all {self.size} rows are taken")
        return heappop(self._free)

    def free(self, row: int) -> None:
        if row in self._free or not 0 <= row < self.size:
            raise AssertionError(f"row {row} is not taken")
        heappush(self._free, row)
