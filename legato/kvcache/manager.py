"""The scheduler's only door to the K/V store: match a prefix, grow, commit, release."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato.core.config import CacheConfig
from legato.kvcache.page_allocator import PageAllocator, PageError
from legato.kvcache.page_table import PageTable
from legato.kvcache.radix_cache import Node, RadixCache


@dataclass(frozen=True, slots=True)
class PageUsage:
    """Where all pages are: held + cached + free = num_pages.

    held    by running requests, a shared page counted once
    cached  in the prefix cache and locked by nobody: given up when pages are needed
    """

    held: int
    cached: int
    free: int


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A node of the prefix cache: the index of its parent among those before it, -1 for the root.

    salt  of the runs that follow the root
    """

    parent: int
    token_ids: Sequence[int]
    pages: Sequence[int]
    salt: str = ""


@dataclass(frozen=True, slots=True)
class SavedTable:
    """What a request holds; `run` is the index of the run where its shared part ends, -1 for none."""

    run: int
    pages: Sequence[int]
    duplicates: Sequence[int]
    salt: str = ""


@dataclass(frozen=True, slots=True)
class SavedPages:
    """Where all pages are, in the orders that decide which goes next: a manager can be made of it."""

    free_pages: Sequence[int]
    runs: Sequence[SavedRun]
    tables: Mapping[str, SavedTable]


class KVCacheManager:
    """Accounts for every page of the K/V store; it knows ids and counts, never contents.

    A page has one owner: the allocator (it is free), a request (private), or the prefix cache (shared by
    those who lock it). prefix_queries and prefix_hits count the tokens of prompts, and those of them that
    were not computed since the cache had them, until a request is first preempted: no token twice.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._allocator = PageAllocator(config.num_pages)
        self._prefixes = RadixCache(config.page_size)
        self._tables: dict[str, PageTable] = {}

    @property
    def num_available_pages(self) -> int:
        """Pages that grow() can still give: the free ones, and those it can evict."""
        return self._allocator.num_free + self._prefixes.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.config.page_size)

    def match_len(self, token_ids: Sequence[int], salt: str = "") -> int:
        """Tokens that start() would find in the prefix cache; changes nothing, not even what goes next."""
        return self._prefixes.peek(token_ids[:-1], salt)[0] * self.config.page_size

    def can_start(
        self,
        token_ids: Sequence[int],
        num_tokens: int,
        reserved: int = 0,
        salt: str = "",
        *,
        hit_end: int = -1,
    ) -> bool:
        """Whether start() and then grow() to `num_tokens` would succeed and leave `reserved` pages available.

        A prefix page that nobody holds is available now, and no longer once this request holds it: a long hit
        does not always make room.
        """
        num_found, num_unlocked = self._prefixes.peek(token_ids[:hit_end], salt)
        num_new = max(0, self.pages_for(num_tokens) - num_found)
        return self.num_available_pages - num_unlocked - num_new >= reserved

    def start(
        self,
        request_id: str,
        token_ids: Sequence[int],
        salt: str = "",
        *,
        hit_end: int = -1,
        is_resumed: bool = False,
    ) -> int:
        """Open the request's table with the pages of its longest known prefix; returns its length in tokens.

        hit_end     end of the slice of token_ids that is looked up. The last token is never part of it:
                    computing it is what gives the next one
        is_resumed  it starts again after a preemption: it is not counted a second time
        """
        if request_id in self._tables:
            raise PageError(f"{request_id} holds pages already")
        node, pages = self._prefixes.match(token_ids[:hit_end], salt)
        self._prefixes.lock(node)
        self._tables[request_id] = PageTable(salt=salt, node=node, pages=pages, is_resumed=is_resumed)
        hit_len = len(pages) * self.config.page_size
        if self.config.enable_prefix_caching and hit_end and not is_resumed:
            self.prefix_queries += len(token_ids)
            self.prefix_hits += hit_len
        return hit_len

    def catch_up(self, request_id: str, token_ids: Sequence[int], cached_len: int) -> int:
        """Take over the pages that others have filled with the request's next tokens since it last looked.

        token_ids   all its known tokens, of which those up to cached_len are computed and committed
        Returns the tokens that it need not compute any more; 0 when nobody is ahead of it. Otherwise its
        pages from cached_len on, the one that it has begun itself among them, have changed.
        """
        table = self._table(request_id)
        if not self.config.enable_prefix_caching:
            return 0
        num_own = table.num_shared
        node, found = self._prefixes.match(token_ids[:-1], table.salt, held=table.node)
        if not found:
            return 0
        self._prefixes.lock(node, above=table.node)
        table.node = node
        # A step in flight may still write to what is given back; whoever gets it writes after that step.
        self._allocator.free(table.pages[num_own : node.end])
        table.pages[num_own : node.end] = found
        num_gained = node.end * self.config.page_size - cached_len
        self.prefix_hits += 0 if table.is_resumed else num_gained
        return num_gained

    def num_needed_pages(self, request_id: str, num_tokens: int) -> int:
        """Pages that the request lacks to hold `num_tokens` tokens in all."""
        return max(0, self.pages_for(num_tokens) - self._table(request_id).num_pages)

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """Give the request pages for `num_tokens` tokens in all; False, and nothing changed, if too few."""
        num_needed = self.num_needed_pages(request_id, num_tokens)
        if num_needed == 0:
            return True
        if num_needed > self.num_available_pages:
            return False
        num_short = num_needed - self._allocator.num_free
        if num_short > 0:
            self._allocator.free(self._prefixes.evict(num_short))
        self._table(request_id).pages += self._allocator.allocate(num_needed)
        return True

    def pages(self, request_id: str) -> Sequence[int]:
        """The request's pages in order of position; read only. Only catch_up() changes one that is there."""
        return self._table(request_id).pages

    def commit(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Offer the full pages of `token_ids`, the first tokens of this request, to later requests.

        Their K/V is written, or will be before whatever is planned from now on reads it: by a step before
        that one, or by that very step (`backends/backend.py: CompiledProgram.forward`). The request keeps
        its pages. Only those since the last commit cost work: earlier tokens are not looked at again.
        """
        table = self._table(request_id)
        num_full = len(token_ids) // self.config.page_size
        if not self.config.enable_prefix_caching or num_full <= table.num_shared:
            return
        if num_full > table.num_pages:
            raise PageError(f"{request_id} commits {num_full} pages and holds {table.num_pages}")
        table.node, duplicates = self._prefixes.insert(token_ids, table.pages, table.salt, held=table.node)
        table.duplicates += duplicates

    def release(self, request_id: str) -> None:
        """Give back all that the request holds, in this one place; what it committed stays cached."""
        table = self._table(request_id)
        del self._tables[request_id]
        self._allocator.free(table.owned_pages)
        self._prefixes.unlock(table.node)

    def usage(self) -> PageUsage:
        free, cached = self._allocator.num_free, self._prefixes.num_evictable
        return PageUsage(held=self.config.num_pages - free - cached, cached=cached, free=free)

    def save(self) -> SavedPages:
        """Everything that decides about pages from here on: O(num_pages)."""
        nodes = self._prefixes.nodes_by_use()
        indexes = {self._prefixes.root: -1} | {node: index for index, node in enumerate(nodes)}
        return SavedPages(
            free_pages=self._allocator.free_pages(),
            runs=[self._saved_run(node, indexes[node.parent]) for node in nodes],
            tables={
                request_id: SavedTable(
                    indexes[table.node], list(table.pages), list(table.duplicates), table.salt
                )
                for request_id, table in self._tables.items()
            },
        )

    def restore(self, saved: SavedPages) -> None:
        """Become what save() has seen; nothing was done with this manager before. Counters begin anew."""
        self._allocator = PageAllocator(self.config.num_pages, saved.free_pages)
        nodes = [self._prefixes.root]  # so that the run of index i is nodes[i + 1]
        for run in saved.runs:
            parent = nodes[run.parent + 1]
            nodes.append(self._prefixes.restore(parent, run.token_ids, run.salt, run.pages))
        for request_id, table in saved.tables.items():
            node = nodes[table.run + 1]
            self._prefixes.lock(node)
            self._tables[request_id] = PageTable(
                salt=table.salt,
                node=node,
                pages=list(table.pages),
                is_resumed=False,
                duplicates=list(table.duplicates),
            )

    def check_integrity(self) -> None:
        """Raise PageError on a leak, a double owner or a wrong count. O(num_pages): for idle times, tests."""
        self._prefixes.check_integrity(Counter(table.node for table in self._tables.values()))
        owners: dict[int, str] = {}
        claims: list[tuple[str, Sequence[int]]] = [("the allocator", self._allocator.free_pages())]
        claims += [("the prefix cache", node.pages) for node in self._prefixes.nodes()]
        claims += [(request_id, table.owned_pages) for request_id, table in self._tables.items()]
        for owner, pages in claims:
            for page in pages:
                if page in owners:
                    raise PageError(f"page {page} belongs to {owners[page]} and to {owner}")
                owners[page] = owner
        lost = set(range(self.config.num_pages)) - owners.keys()
        if lost:
            raise PageError(f"pages {sorted(lost)} belong to nobody")
        for request_id, table in self._tables.items():
            self._check_table(request_id, table)

    def _check_table(self, request_id: str, table: PageTable) -> None:
        """Raise PageError unless the table's shared part is the tree's, but for its duplicates."""
        known = self._prefixes.pages_of(table.node)
        for page, in_tree in zip(table.pages, known, strict=False):
            if page != in_tree and page not in table.duplicates:
                raise PageError(f"{request_id} holds page {page} where the prefix cache has {in_tree}")
        if table.num_pages < len(known):
            raise PageError(f"{request_id} holds {table.num_pages} pages and has committed {len(known)}")

    def _saved_run(self, node: Node, parent: int) -> SavedRun:
        token_ids, salt = self._prefixes.tokens_of(node)
        return SavedRun(parent, token_ids, list(node.pages), salt)

    def _table(self, request_id: str) -> PageTable:
        try:
            return self._tables[request_id]
        except KeyError:
            raise PageError(f"{request_id} holds no pages: not started, or released already") from None
