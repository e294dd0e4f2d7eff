"""Prefix tree over pages: which page holds the K/V of which tokens, who uses it, and what may go first."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, count
from operator import ne

from legato.kvcache.page_allocator import PageError

# What one page holds. A prompt's first page carries the salt as a tag beside its tokens, not joined to them,
# so that no choice of tokens or salt can reach another namespace.
PageKey = tuple[int, ...] | tuple[str, tuple[int, ...]]


class Node:
    """A run of pages that always follow each other, and what may follow them.

    keys       tokens of each page; keys[0] names this node among its parent's children
    pages      page ids, one a key
    first      index of the run's first page, counted from position 0 of the prompt
    ref_count  holders of this node and of all nodes below it
    """

    __slots__ = ("children", "first", "keys", "pages", "parent", "ref_count")

    def __init__(self, parent: "Node | None", keys: Sequence[PageKey], pages: Sequence[int]) -> None:
        self.parent = parent or self  # the root is its own parent
        self.keys = list(keys)
        self.pages = list(pages)
        self.first = parent.end if parent else 0
        self.ref_count = 0
        self.children: dict[PageKey, Node] = {}

    @property
    def end(self) -> int:
        """Pages from position 0 to the end of this run."""
        return self.first + len(self.pages)


class RadixCache:
    """The pages whose K/V is known, by the tokens that led to it.

    Tokens decide, not their hashes: a dict finds a child by hash and then compares every token, so two
    prompts that collide are still two prompts.

    Eviction is by least recent use, deepest page first, and takes exactly the pages asked for, cutting a
    run's tail if need be. It needs neither clock nor heap: `_unlocked` is in the order of last use, and each
    use of a node moves the node, then its ancestors, to the end. So what follows a page stands before it, and
    the first entry is always a leaf.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = 0
        self.num_evictable = 0  # pages of unlocked nodes: below an unlocked node none is locked
        self.root = Node(None, (), ())  # of the empty prefix; locking it is void
        self.root.ref_count = 1  # never evicted
        self._unlocked: OrderedDict[Node, None] = OrderedDict()

    def peek(self, token_ids: Sequence[int], salt: str = "") -> tuple[int, int]:
        """Count the pages that match() would find, and those of them that nobody locks. Changes nothing."""
        num_found = num_unlocked = 0
        for node, num_common in self._path(self.root, self._page_keys(token_ids, salt)):
            num_found += num_common
            num_unlocked += num_common if node.ref_count == 0 else 0
        return num_found, num_unlocked

    def match(
        self, token_ids: Sequence[int], salt: str = "", held: Node | None = None
    ) -> tuple[Node, list[int]]:
        """Find the longest known prefix, in full pages: the node it ends at, and its pages in order.

        held  a node on this path that the caller has locked: only what follows it is looked up and returned.
        It counts as a use. Lock the node before the next call: until then its pages may be evicted.
        """
        node, pages = held or self.root, []
        keys = self._page_keys(token_ids, salt, node.end) if node.children else []
        for child, num_common in self._path(node, keys):
            node = self._split(child, num_common)
            pages += node.pages
        self._touch(node)
        return node, pages

    def insert(
        self, token_ids: Sequence[int], pages: Sequence[int], salt: str = "", held: Node | None = None
    ) -> tuple[Node, list[int]]:
        """Enter the full pages of `token_ids`; pages[i] holds the tokens of page i, counted from position 0.

        held  a node on this path that the caller has locked: the work starts there. Default: the root.
        Returns the node where the path ends, to which the caller's lock has moved on, and the pages that stay
        the caller's because the tree had others with the same tokens. The rest is the tree's from now on.
        """
        start = node = held or self.root
        keys = self._page_keys(token_ids, salt, start.end)
        duplicates: list[int] = []
        for child, num_common in self._path(node, keys):
            node = self._split(child, num_common)
            given = pages[node.first : node.end]
            duplicates += [page for page, known in zip(given, node.pages, strict=True) if page != known]
        num_known = node.end - start.end
        if num_known < len(keys):
            new_pages = pages[node.end : start.end + len(keys)]
            node = self._append(node, keys[num_known:], new_pages, num_own_locks=int(node is held))
        self.lock(node, above=start)
        return node, duplicates

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Keep the path from the root to `node` from eviction; with `above`, the part below that node."""
        top = above or self.root
        while node is not top:
            if node.ref_count == 0:
                del self._unlocked[node]
                self.num_evictable -= len(node.pages)
            node.ref_count += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one lock. It counts as a use: the holder needed the pages until now."""
        while node is not self.root:
            if node.ref_count == 0:
                raise PageError(f"pages {node.pages} of the prefix cache unlocked more often than locked")
            node.ref_count -= 1
            if node.ref_count == 0:
                self._unlocked[node] = None
                self.num_evictable += len(node.pages)
            node = node.parent

    def evict(self, num_pages: int) -> list[int]:
        """Forget and return `num_pages` unlocked pages, or all there are, least recently used first."""
        evicted: list[int] = []
        while len(evicted) < num_pages and self._unlocked:
            node = next(iter(self._unlocked))
            kept = max(0, len(node.pages) - (num_pages - len(evicted)))
            evicted += reversed(node.pages[kept:])
            if kept == 0:
                del self._unlocked[node]
                del node.parent.children[node.keys[0]]
            del node.pages[kept:], node.keys[kept:]
        self.num_pages -= len(evicted)
        self.num_evictable -= len(evicted)
        return evicted

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, for checks."""
        stack = list(self.root.children.values())
        while stack:
            yield (node := stack.pop())
            stack += node.children.values()

    def nodes_by_use(self) -> list[Node]:
        """All nodes but the root: the locked ones, then the others, the first to be evicted last.

        A node stands behind its parent, so that restore() can enter them one after another.
        """
        locked = [node for node in self.nodes() if node.ref_count]
        return [*locked, *reversed(self._unlocked)]

    def tokens_of(self, node: Node) -> tuple[list[int], str]:
        """The tokens of a run, and of one below the root the salt."""
        salt, pages = "", []
        for key in node.keys:
            match key:
                case (str(salt), tuple(page)):
                    pages.append(page)
                case _:
                    pages.append(key)
        return [token_id for page in pages for token_id in page], salt

    def restore(self, parent: Node, token_ids: Sequence[int], salt: str, pages: Sequence[int]) -> Node:
        """Enter a run as nodes_by_use() of another cache had it; those to be evicted first come last."""
        before = [0] * (parent.end * self.page_size)
        keys = self._page_keys([*before, *token_ids], salt, parent.end)
        node = Node(parent, keys, pages)
        parent.children[keys[0]] = node
        self._unlocked[node] = None
        self._unlocked.move_to_end(node, last=False)
        self.num_pages += len(pages)
        self.num_evictable += len(pages)
        return node

    def pages_of(self, node: Node) -> list[int]:
        """All pages from the root to the end of `node`, for checks."""
        runs: list[list[int]] = []
        while node is not self.root:
            runs.append(node.pages)
            node = node.parent
        return [page for run in reversed(runs) for page in run]

    def check_integrity(self, holders: Mapping[Node, int]) -> None:
        """Raise PageError unless links, counts and order are sound. holders: node -> locks that end there."""
        nodes = list(self.nodes())
        ranks = {node: rank for rank, node in enumerate(self._unlocked)}
        for node in nodes:
            fault = _fault_of(node, holders.get(node, 0), ranks)
            if fault:
                raise PageError(f"prefix cache, pages {node.pages} from page {node.first} on: {fault}")
        unlocked = [node for node in nodes if node.ref_count == 0]
        num_pages, num_evictable = (sum(len(node.pages) for node in some) for some in (nodes, unlocked))
        if (num_pages, num_evictable) != (self.num_pages, self.num_evictable) or len(unlocked) != len(ranks):
            raise PageError(
                f"prefix cache counts {self.num_pages} pages, {self.num_evictable} evictable"
                f" in {len(ranks)} nodes, but has {num_pages}, {num_evictable} in {len(unlocked)}"
            )

    def _page_keys(self, token_ids: Sequence[int], salt: str, first: int = 0) -> list[PageKey]:
        """The tokens of each full page from page `first` on."""
        tokens = iter(token_ids[first * self.page_size :])
        pages = list(zip(*[tokens] * self.page_size, strict=False))  # leaves out a last, partial page
        return [(salt, pages[0]), *pages[1:]] if pages and first == 0 else pages

    def _path(self, node: Node, keys: Sequence[PageKey]) -> Iterator[tuple[Node, int]]:
        """The nodes below `node` that `keys` run through, each with how many of its pages they share.

        They share all, or the path ends there. The caller may split the node that it was given last.
        """
        done = 0
        is_whole = True
        while is_whole and done < len(keys) and (child := node.children.get(keys[done])):
            wanted = keys[done : done + len(child.keys)]
            num_common = next(compress(count(), map(ne, child.keys, wanted)), len(wanted))
            is_whole = num_common == len(child.keys)
            done += num_common
            yield child, num_common
            node = child

    def _split(self, node: Node, num_pages: int) -> Node:
        """Part a run after `num_pages` pages; returns the node of the first part.

        The second part stays the same object, so whoever has locked it still holds the same pages.
        """
        if num_pages == len(node.pages):
            return node
        upper = Node(node.parent, node.keys[:num_pages], node.pages[:num_pages])
        upper.ref_count = node.ref_count
        upper.parent.children[upper.keys[0]] = upper
        del node.keys[:num_pages], node.pages[:num_pages]
        node.parent, node.first = upper, upper.end
        upper.children[node.keys[0]] = node
        if upper.ref_count == 0:
            self._unlocked[upper] = None  # for now: the caller is about to use it, which puts it in its place
        return upper

    def _append(self, node: Node, keys: Sequence[PageKey], pages: Sequence[int], num_own_locks: int) -> Node:
        """Enter new pages after `node`; returns the node that ends with them."""
        # A run grows in place, so that a path is as deep as it has branches, not pages; but not under the
        # hands of others, who hold it without what follows.
        if node is self.root or node.children or node.ref_count > num_own_locks:
            child = Node(node, keys, pages)
            node.children[keys[0]] = child
            self._unlocked[child] = None
            node = child
        else:
            node.keys += keys
            node.pages += pages
        self.num_pages += len(pages)
        self.num_evictable += len(pages) if node.ref_count == 0 else 0
        return node

    def _touch(self, node: Node) -> None:
        """Make the path to `node` the last to be evicted; locked nodes have no place in that order."""
        while node.ref_count == 0:
            self._unlocked.move_to_end(node)
            node = node.parent


def _fault_of(node: Node, num_holders: int, ranks: Mapping[Node, int]) -> str:
    """What is wrong with a node, "" if nothing. ranks: unlocked node -> its place in the eviction order."""
    num_locks = num_holders + sum(child.ref_count for child in node.children.values())
    if node.ref_count != num_locks:
        return f"reference count {node.ref_count}, but {num_locks} holders"
    if len(node.keys) != len(node.pages) or not node.pages or node.first != node.parent.end:
        return f"{len(node.keys)} keys after page {node.parent.end} do not fit"
    if node.parent.children.get(node.keys[0]) is not node:
        return "not found under its own tokens"
    if (node.ref_count == 0) != (node in ranks):
        return f"reference count {node.ref_count}, evictable {node in ranks}"
    if ranks.get(node, -1) > ranks.get(node.parent, len(ranks)):
        return "to be evicted later than the pages before it"
    return ""
