"""The prefix cache as a dict: one entry a page, by salt and all tokens to its end. Slow and obvious."""

from collections.abc import Sequence
from dataclasses import dataclass

Prefix = tuple[str, tuple[int, ...]]


@dataclass
class CachedPage:
    page: int
    num_locks: int = 0
    last_use: int = 0


class PrefixModel:
    """What RadixCache promises, without a tree."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.cached: dict[Prefix, CachedPage] = {}
        self.clock = 0

    def prefixes(self, token_ids: Sequence[int], salt: str) -> list[Prefix]:
        ends = range(self.page_size, len(token_ids) + 1, self.page_size)
        return [(salt, tuple(token_ids[:end])) for end in ends]

    def match(self, token_ids: Sequence[int], salt: str) -> list[Prefix]:
        """The prefixes of all pages found, shortest first."""
        found: list[Prefix] = []
        for prefix in self.prefixes(token_ids, salt):
            if prefix not in self.cached:
                break
            found.append(prefix)
        return found

    def pages(self, prefixes: Sequence[Prefix]) -> list[int]:
        return [self.cached[prefix].page for prefix in prefixes]

    def use(self, prefixes: Sequence[Prefix]) -> None:
        self.clock += 1
        for prefix in prefixes:
            self.cached[prefix].last_use = self.clock

    def insert(self, token_ids: Sequence[int], pages: Sequence[int], salt: str) -> list[int]:
        """Returns the pages that were not taken."""
        duplicates = []
        prefixes = self.prefixes(token_ids, salt)
        for prefix, page in zip(prefixes, pages, strict=False):
            if self.cached.setdefault(prefix, CachedPage(page)).page != page:
                duplicates.append(page)
        self.use(prefixes)
        return duplicates

    def lock(self, prefixes: Sequence[Prefix], change: int = 1) -> None:
        for prefix in prefixes:
            self.cached[prefix].num_locks += change
        if change < 0:
            self.use(prefixes)

    def evictable(self) -> list[Prefix]:
        """In the order of eviction: least recently used first; of one use, the last page first."""
        free = [prefix for prefix, entry in self.cached.items() if entry.num_locks == 0]
        return sorted(free, key=lambda prefix: (self.cached[prefix].last_use, -len(prefix[1])))

    def evict(self, num_pages: int) -> list[int]:
        return [self.cached.pop(prefix).page for prefix in self.evictable()[:num_pages]]
