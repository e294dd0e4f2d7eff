"""The prefix cache finds the longest prefix, keeps what is locked, and forgets the least recently used."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from legato.kvcache.page_allocator import PageError
from legato.kvcache.radix_cache import Node, RadixCache
from tests.kvcache.prefix_model import Prefix, PrefixModel


def cache_of(page_size: int, *prompts: tuple[list[int], list[int]]) -> RadixCache:
    """A cache that holds these (token_ids, pages), none locked, the first one least recently used."""
    cache = RadixCache(page_size)
    for token_ids, pages in prompts:
        insert(cache, token_ids, pages)
    return cache


def insert(cache: RadixCache, token_ids: list[int], pages: list[int], salt: str = "") -> list[int]:
    node, duplicates = cache.insert(token_ids, pages, salt)
    cache.unlock(node)
    return duplicates


def found(cache: RadixCache, token_ids: list[int], salt: str = "") -> list[int]:
    num_found, _ = cache.peek(token_ids, salt)
    pages = cache.match(token_ids, salt)[1]
    assert num_found == len(pages)
    return pages


def runs(cache: RadixCache) -> list[list[int]]:
    """The pages of each node."""
    return sorted(node.pages for node in cache.nodes())


def test_match_is_the_longest_prefix_in_full_pages() -> None:
    cache = cache_of(2, ([1, 2, 3, 4, 5], [10, 11]))

    assert cache.num_pages == 2
    assert found(cache, [1, 2, 3, 4, 9, 9]) == [10, 11]
    assert found(cache, [1, 2, 3]) == [10]
    assert found(cache, [1, 2, 9, 9]) == [10]
    assert found(cache, [1]) == []
    assert found(cache, [2, 1, 3, 4]) == []
    assert found(cache, []) == []


@pytest.mark.parametrize("page_size", [1, 16])
def test_page_size_changes_the_grain_of_a_hit_alone(page_size: int) -> None:
    token_ids = list(range(40))
    cache = cache_of(page_size, (token_ids, list(range(40 // page_size))))

    assert len(found(cache, token_ids[:39])) == 39 // page_size
    assert len(found(cache, [*token_ids[:17], 99])) == 17 // page_size


def test_run_splits_at_the_page_where_prompts_part() -> None:
    cache = cache_of(2, ([1, 2, 3, 4, 5, 6], [10, 11, 12]))
    assert runs(cache) == [[10, 11, 12]]

    assert insert(cache, [1, 2, 3, 4, 7, 8], [20, 21, 22]) == [20, 21]

    assert runs(cache) == [[10, 11], [12], [22]]
    assert found(cache, [1, 2, 3, 4, 5, 6]) == [10, 11, 12]
    assert found(cache, [1, 2, 3, 4, 7, 8]) == [10, 11, 22]
    cache.check_integrity({})


def test_prompts_that_part_within_a_page_share_only_the_pages_before_it() -> None:
    cache = cache_of(4, ([1, 2, 3, 4, 5, 6, 7, 8], [10, 11]))

    assert insert(cache, [1, 2, 3, 4, 5, 6, 7, 9], [20, 21]) == [20]

    assert found(cache, [1, 2, 3, 4, 5, 6, 7, 9]) == [10, 21]


def test_peek_splits_nothing_and_is_no_use() -> None:
    cache = cache_of(1, ([1, 2], [10, 11]), ([3], [12]))

    assert cache.peek([1, 9]) == (1, 1)

    assert runs(cache) == [[10, 11], [12]]
    assert cache.evict(1) == [11]


def test_growing_run_of_its_only_holder_stays_one_node() -> None:
    cache = RadixCache(1)
    node, _ = cache.insert([1], [10])
    for length in range(2, 6):
        node, _ = cache.insert([1, 2, 3, 4, 5][:length], [10, 11, 12, 13, 14], held=node)

    assert runs(cache) == [[10, 11, 12, 13, 14]]
    assert cache.num_evictable == 0
    cache.unlock(node)
    assert cache.num_evictable == 5
    cache.check_integrity({})


def test_run_held_by_two_does_not_grow_under_the_other() -> None:
    cache = cache_of(1, ([1], [10]))
    first, _ = cache.match([1])
    cache.lock(first)
    cache.lock(first)

    second, _ = cache.insert([1, 2], [10, 11], held=first)
    cache.unlock(second)

    assert runs(cache) == [[10], [11]]
    assert cache.num_evictable == 1
    cache.check_integrity({first: 1})


def test_split_keeps_the_holder_on_its_own_pages() -> None:
    cache = RadixCache(1)
    holder, _ = cache.insert([1, 2, 3], [10, 11, 12])

    insert(cache, [1, 9], [20, 21])

    assert cache.pages_of(holder) == [10, 11, 12]
    assert holder.end == 3
    assert cache.evict(9) == [21]
    cache.unlock(holder)
    assert cache.evict(9) == [12, 11, 10]


def test_least_recently_used_goes_first_and_its_last_page_before_the_others() -> None:
    cache = cache_of(1, ([1, 2], [10, 11]), ([3, 4], [20, 21]), ([5, 6], [30, 31]))
    cache.match([1, 2])

    assert cache.evict(3) == [21, 20, 31]
    assert cache.evict(3) == [30, 11, 10]
    assert cache.evict(3) == []
    assert (cache.num_pages, cache.num_evictable) == (0, 0)


def test_match_within_a_run_renews_only_the_part_it_used() -> None:
    cache = cache_of(1, ([1, 2, 3], [10, 11, 12]), ([4], [20]))
    cache.match([1])

    assert cache.evict(4) == [12, 11, 20, 10]


def test_release_is_a_use() -> None:
    cache = RadixCache(1)
    node, _ = cache.insert([1], [10])
    insert(cache, [2], [20])
    cache.unlock(node)

    assert cache.evict(1) == [20]


def test_eviction_takes_exactly_the_pages_asked_for() -> None:
    cache = cache_of(2, ([1, 2, 3, 4, 5, 6], [10, 11, 12]))

    assert cache.evict(2) == [12, 11]

    assert found(cache, [1, 2, 3, 4, 5, 6]) == [10]
    assert (cache.num_pages, cache.num_evictable) == (1, 1)


def test_parent_of_the_last_evicted_child_goes_next() -> None:
    cache = cache_of(1, ([1, 2], [10, 11]), ([1, 3], [20, 21]))

    assert cache.evict(2) == [11, 21]
    assert cache.evict(1) == [10]


def test_locked_pages_are_never_evicted() -> None:
    cache = cache_of(1, ([1, 2, 3], [10, 11, 12]), ([1, 4], [20, 21]))
    node, pages = cache.match([1, 2])
    cache.lock(node)

    assert pages == [10, 11]
    assert cache.num_evictable == 2
    assert cache.evict(9) == [12, 21]
    cache.unlock(node)
    assert cache.evict(9) == [11, 10]


def test_unlocking_more_often_than_locked_is_caught() -> None:
    cache = cache_of(1, ([1], [10]))
    node, _ = cache.match([1])

    with pytest.raises(PageError, match="more often"):
        cache.unlock(node)


@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_that_a_rolling_hash_confuses_are_kept_apart(page_size: int) -> None:
    """+31 on one token and -1 on the next leave a hash of the form h * 31 + token unchanged."""
    token_ids = [100 + i for i in range(2 * 16)]
    for j in range(len(token_ids) - 1):
        other = [*token_ids[:j], token_ids[j] + 1, token_ids[j + 1] - 31, *token_ids[j + 2 :]]
        cache = cache_of(page_size, (token_ids, list(range(32 // page_size))))

        assert len(found(cache, other)) == j // page_size


def test_python_hash_collision_is_no_hit() -> None:
    assert hash((-1,)) == hash((-2,))

    assert found(cache_of(1, ([-1], [10])), [-2]) == []


def test_salts_never_meet() -> None:
    cache = cache_of(1, ([1, 2], [10, 11]))
    assert insert(cache, [1, 2], [20, 21], salt="A") == []
    assert insert(cache, [1, 2], [30, 31], salt="AA") == []

    assert found(cache, [1, 2]) == [10, 11]
    assert found(cache, [1, 2], salt="A") == [20, 21]
    assert found(cache, [1, 2], salt="AA") == [30, 31]
    assert found(cache, [1, 2], salt="AB") == []


def break_reference_count(cache: RadixCache, node: Node) -> None:
    node.ref_count += 1


def break_key(cache: RadixCache, node: Node) -> None:
    node.keys[0] = ("", (7,))


def break_run(cache: RadixCache, node: Node) -> None:
    node.pages.append(99)


def break_counter(cache: RadixCache, node: Node) -> None:
    cache.num_evictable += 1


def break_lock(cache: RadixCache, node: Node) -> None:
    del cache._unlocked[node]


def break_order(cache: RadixCache, node: Node) -> None:
    cache._unlocked.move_to_end(node, last=False)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (break_reference_count, "reference count 1, but 0 holders"),
        (break_key, "not found under its own tokens"),
        (break_run, "keys after page 0 do not fit"),
        (break_counter, "counts 3 pages, 4 evictable"),
        (break_lock, "evictable False"),
        (break_order, "later than the pages before it"),
    ],
)
def test_damage_is_found(damage: Callable[[RadixCache, Node], None], text: str) -> None:
    cache = cache_of(1, ([1, 2], [10, 11]), ([1, 3], [20, 21]))
    cache.check_integrity({})
    node = cache.root.children[("", (1,))]

    damage(cache, node)

    with pytest.raises(PageError, match=text):
        cache.check_integrity({})


tokens = st.lists(st.integers(0, 1), max_size=9)
salts = st.sampled_from(["", "A"])


class RadixMachine(RuleBasedStateMachine):
    """Against PrefixModel: the same hits, the same duplicates, the same pages evicted in the same order."""

    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def build(self, page_size: int) -> None:
        self.cache = RadixCache(page_size)
        self.model = PrefixModel(page_size)
        self.held: list[tuple[Node, list[Prefix]]] = []
        self.next_page = 0

    def new_pages(self, num_pages: int) -> list[int]:
        self.next_page += num_pages
        return list(range(self.next_page - num_pages, self.next_page))

    @rule(token_ids=tokens, salt=salts)
    def peek(self, token_ids: list[int], salt: str) -> None:
        hit = self.model.match(token_ids, salt)
        num_unlocked = sum(self.model.cached[prefix].num_locks == 0 for prefix in hit)
        assert self.cache.peek(token_ids, salt) == (len(hit), num_unlocked)

    @rule(token_ids=tokens, salt=salts, is_locked=st.booleans())
    def match(self, token_ids: list[int], salt: str, is_locked: bool) -> None:
        hit = self.model.match(token_ids, salt)
        node, pages = self.cache.match(token_ids, salt)
        self.model.use(hit)
        assert pages == self.model.pages(hit)
        assert node.end == len(hit)
        if is_locked:
            self.cache.lock(node)
            self.model.lock(hit)
            self.held.append((node, hit))

    @rule(token_ids=tokens, salt=salts, is_locked=st.booleans())
    def insert(self, token_ids: list[int], salt: str, is_locked: bool) -> None:
        prefixes = self.model.prefixes(token_ids, salt)
        pages = self.new_pages(len(prefixes))
        node, duplicates = self.cache.insert(token_ids, pages, salt)
        assert duplicates == self.model.insert(token_ids, pages, salt)
        self.model.lock(prefixes)
        self.held.append((node, prefixes))
        if not is_locked:
            self.unlock(-1)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), more=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def continue_below(self, which: int, more: list[int]) -> None:
        """A holder enters what follows its prefix, and its lock moves along."""
        node, held = self.held.pop(which % len(self.held))
        salt, known = held[-1] if held else ("A", ())
        token_ids = [*known, *more]
        prefixes = self.model.prefixes(token_ids, salt)
        pages = self.model.pages(held) + self.new_pages(len(prefixes) - len(held))
        node, duplicates = self.cache.insert(token_ids, pages, salt, held=node)
        assert duplicates == self.model.insert(token_ids, pages, salt)
        self.model.lock(prefixes[len(held) :])
        self.held.append((node, prefixes))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def unlock(self, which: int) -> None:
        node, prefixes = self.held.pop(which % len(self.held))
        self.cache.unlock(node)
        self.model.lock(prefixes, -1)

    @rule(num_pages=st.integers(0, 6))
    def evict(self, num_pages: int) -> None:
        assert self.cache.evict(num_pages) == self.model.evict(num_pages)

    @invariant()
    def tree_is_sound_and_equal(self) -> None:
        self.cache.check_integrity(Counter(node for node, _ in self.held))
        assert self.cache.num_evictable == len(self.model.evictable())
        pages = sorted(page for node in self.cache.nodes() for page in node.pages)
        assert pages == sorted(entry.page for entry in self.model.cached.values())
        for node, prefixes in self.held:
            assert self.cache.pages_of(node) == self.model.pages(prefixes)


TestRadixTree = RadixMachine.TestCase
TestRadixTree.settings = settings(
    max_examples=75, stateful_step_count=40, derandomize=True, database=None, deadline=None
)


@pytest.mark.slow
class TestRadixTreeAtLength(RadixMachine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=60, database=None, deadline=None)
