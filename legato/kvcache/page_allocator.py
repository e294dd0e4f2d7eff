"""Which pages of the K/V store are free; a page given back twice, or by nobody, is caught here."""

from collections.abc import Sequence


class PageError(AssertionError):
    """A page or a lock was miscounted: a fault of ours, never of a client."""


class PageAllocator:
    """Hands out the page ids 0 to num_pages - 1, each to one owner at a time.

    The order is a pure function of the calls: a fresh pool gives 0, 1, 2, ..., and the pages given back last
    go out first, in the order in which they came.
    """

    def __init__(self, num_pages: int, free_pages: Sequence[int] | None = None) -> None:
        """free_pages  as another pool gave them, all others are out; by default all are free"""
        self.num_pages = num_pages
        all_pages = range(num_pages)
        # a stack: the next page to go out is its last
        self._free = list(reversed(all_pages) if free_pages is None else free_pages)
        self._taken = set(all_pages).difference(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Take `num_pages` pages. Raises PageError when fewer are free: look at num_free first."""
        if not 0 <= num_pages <= len(self._free):
            raise PageError(f"asked for {num_pages} pages, {len(self._free)} of {self.num_pages} are free")
        rest = len(self._free) - num_pages
        pages = self._free[rest:][::-1]
        del self._free[rest:]
        self._taken.update(pages)
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back. Raises PageError, and takes none, when one is not out or is named twice."""
        returned = set(pages)
        if len(returned) != len(pages) or not returned <= self._taken:
            raise PageError(f"pages {list(pages)} given back: one is free, given twice, or not of this pool")
        self._taken -= returned
        self._free.extend(reversed(pages))

    def free_pages(self) -> tuple[int, ...]:
        """The free pages, the next one to go out last: O(num_pages)."""
        return tuple(self._free)
