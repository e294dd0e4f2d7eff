"""What one request holds: its pages in order of position, and how many of them the prefix cache knows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from legato.kvcache.radix_cache import Node


@dataclass(slots=True, kw_only=True)
class PageTable:
    """The pages of one request; pages[i] holds positions [i * page_size, (i + 1) * page_size).

    [0, num_shared)          tokens known to the prefix cache: the page is in its tree, or a duplicate
    [num_shared, num_pages)  private: the request alone knows them
    node                     where the shared part ends in the tree; the request holds one lock on it
    duplicates               pages below num_shared whose tokens the tree has in another page. They stay the
                             request's, in its table, until it ends.
    is_resumed               started again after a preemption
    """

    salt: str
    node: Node
    pages: list[int]
    is_resumed: bool
    duplicates: list[int] = field(default_factory=list)

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def num_shared(self) -> int:
        return self.node.end

    @property
    def owned_pages(self) -> Sequence[int]:
        """Pages that go back to the allocator when the request ends; the others stay in the tree."""
        return self.duplicates + self.pages[self.num_shared :]
