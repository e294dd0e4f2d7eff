"""Requests take pages, share prefixes and give everything back, once."""

import random

import pytest

from legato.core.config import CacheConfig
from legato.kvcache.manager import KVCacheManager, PageUsage
from legato.kvcache.page_allocator import PageError


def manager_of(num_pages: int, page_size: int = 1, enable_prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(
        CacheConfig(num_pages=num_pages, page_size=page_size, enable_prefix_caching=enable_prefix_caching)
    )


def serve(manager: KVCacheManager, request_id: str, token_ids: list[int], salt: str = "") -> int:
    """A request from start to end; returns its hit."""
    hit_len = manager.start(request_id, token_ids, salt)
    assert manager.grow(request_id, len(token_ids))
    manager.commit(request_id, token_ids)
    manager.release(request_id)
    manager.check_integrity()
    return hit_len


@pytest.mark.parametrize(("page_size", "expected"), [(1, [0, 1, 16, 17, 33]), (16, [0, 1, 1, 2, 3])])
def test_pages_for_rounds_up(page_size: int, expected: list[int]) -> None:
    manager = manager_of(1, page_size)

    assert [manager.pages_for(num_tokens) for num_tokens in [0, 1, 16, 17, 33]] == expected


def test_grow_adds_only_the_pages_that_are_missing() -> None:
    manager = manager_of(8, page_size=4)
    manager.start("a", [1] * 9)

    assert manager.num_needed_pages("a", 9) == 3
    assert manager.grow("a", 9)
    assert manager.pages("a") == [0, 1, 2]
    assert manager.grow("a", 12)
    assert manager.grow("a", 5)
    assert manager.pages("a") == [0, 1, 2]
    assert manager.grow("a", 13)
    assert manager.pages("a") == [0, 1, 2, 3]
    manager.check_integrity()


def test_grow_that_does_not_fit_changes_nothing() -> None:
    manager = manager_of(4)
    serve(manager, "cached", [1, 2])
    manager.start("a", [9, 9])
    manager.grow("a", 1)

    assert not manager.grow("a", 5)

    assert manager.usage() == PageUsage(held=1, cached=2, free=1)
    assert manager.match_len([1, 2, 3]) == 2
    manager.check_integrity()


def test_grow_evicts_cached_pages_but_no_more_than_it_needs() -> None:
    manager = manager_of(6)
    serve(manager, "old", [1, 2, 3])
    serve(manager, "new", [4, 5])
    manager.start("a", [9] * 3)

    assert manager.grow("a", 3)

    assert manager.match_len([1, 2, 3, 0]) == 1
    assert manager.match_len([4, 5, 0]) == 2
    assert manager.usage() == PageUsage(held=3, cached=3, free=0)
    manager.check_integrity()


@pytest.mark.parametrize("page_size", [1, 16])
def test_hit_never_covers_the_last_token(page_size: int) -> None:
    manager = manager_of(64, page_size)
    token_ids = list(range(32))
    serve(manager, "a", token_ids)

    assert manager.match_len(token_ids) == (31 if page_size == 1 else 16)
    assert manager.match_len([*token_ids, 7]) == 32
    assert manager.start("b", token_ids) == (31 if page_size == 1 else 16)


def test_started_request_begins_with_the_pages_of_its_prefix() -> None:
    manager = manager_of(8, page_size=2)
    manager.start("a", [1, 2, 3, 4, 5])
    manager.grow("a", 5)
    manager.commit("a", [1, 2, 3, 4])

    assert manager.start("b", [1, 2, 3, 4, 6]) == 4
    assert manager.grow("b", 5)

    assert manager.pages("a") == [0, 1, 2]
    assert manager.pages("b") == [0, 1, 3]
    assert manager.usage() == PageUsage(held=4, cached=0, free=4)
    manager.check_integrity()


def test_partial_last_page_is_not_shared() -> None:
    manager = manager_of(8, page_size=4)
    manager.start("a", [1, 2, 3, 4, 5, 6])
    manager.grow("a", 6)
    manager.commit("a", [1, 2, 3, 4, 5, 6])

    assert manager.match_len([1, 2, 3, 4, 5, 6, 7]) == 4
    manager.release("a")
    assert manager.usage() == PageUsage(held=0, cached=1, free=7)


def test_commit_is_incremental_and_may_be_repeated() -> None:
    manager = manager_of(8, page_size=2)
    token_ids = [1, 2, 3, 4, 5, 6]
    manager.start("a", token_ids)
    manager.grow("a", 6)
    for length in [0, 1, 2, 2, 3, 6, 6, 4]:
        manager.commit("a", token_ids[:length])
        manager.check_integrity()

    assert manager.match_len([*token_ids, 7]) == 6
    assert manager.pages("a") == [0, 1, 2]


def test_commit_of_pages_not_held_is_caught() -> None:
    manager = manager_of(8)
    manager.start("a", [1, 2])
    manager.grow("a", 1)

    with pytest.raises(PageError, match="a commits 2 pages and holds 1"):
        manager.commit("a", [1, 2])


def test_same_prompt_computed_twice_leaves_the_table_alone_and_gives_the_copy_back() -> None:
    manager = manager_of(8, page_size=2)
    for request_id in ["a", "b"]:  # both start before either has anything to share
        manager.start(request_id, [1, 2, 3, 4, 5])
        manager.grow(request_id, 5)
    manager.commit("a", [1, 2, 3, 4])
    manager.commit("b", [1, 2, 3, 4])
    manager.check_integrity()

    assert manager.pages("a") == [0, 1, 2]
    assert manager.pages("b") == [3, 4, 5]
    manager.release("b")
    assert manager.usage() == PageUsage(held=3, cached=0, free=5)
    manager.release("a")
    assert manager.usage() == PageUsage(held=0, cached=2, free=6)
    manager.check_integrity()


def test_what_follows_a_copied_page_is_shared_and_keeps_its_prefix_in_the_tree() -> None:
    manager = manager_of(8)
    for request_id in ["a", "b"]:
        manager.start(request_id, [1, 2])
        manager.grow(request_id, 3)
    manager.commit("a", [1])
    manager.commit("b", [1, 2, 3])
    manager.release("a")  # page 0 stays: b's pages lie below it in the tree

    assert manager.pages("b") == [3, 4, 5]
    assert manager.usage() == PageUsage(held=4, cached=0, free=4)
    assert manager.start("c", [1, 2, 3, 4]) == 3
    assert manager.pages("c") == [0, 4, 5]
    manager.check_integrity()


def test_pages_of_running_requests_are_never_evicted() -> None:
    manager = manager_of(4)
    manager.start("a", [1, 2, 3])
    manager.grow("a", 3)
    manager.commit("a", [1, 2, 3])
    manager.start("b", [9, 9])

    assert manager.num_available_pages == 1
    assert not manager.grow("b", 2)
    assert manager.match_len([1, 2, 3, 4]) == 3


def test_can_start_counts_a_hit_that_nobody_holds_as_taken() -> None:
    """Four pages, all cached: a hit of 3 leaves 1 available, not 4."""
    manager = manager_of(4)
    serve(manager, "a", [1, 2, 3, 4])
    prompt = [1, 2, 3, 9, 9]

    assert manager.can_start(prompt, num_tokens=4)
    assert not manager.can_start(prompt, num_tokens=4, reserved=1)
    assert not manager.can_start(prompt, num_tokens=5)
    assert manager.can_start(prompt, num_tokens=2, reserved=1)
    assert not manager.can_start(prompt, num_tokens=2, reserved=2)
    assert manager.start("b", prompt) == 3
    assert manager.num_available_pages == 1
    assert manager.grow("b", 4)
    assert not manager.grow("b", 5)


def test_can_start_counts_a_hit_that_others_hold_as_free_of_charge() -> None:
    manager = manager_of(4)
    manager.start("a", [1, 2, 3])
    manager.grow("a", 3)
    manager.commit("a", [1, 2, 3])

    assert manager.can_start([1, 2, 3, 9], num_tokens=4)
    assert manager.can_start([1, 2, 3, 9], num_tokens=3, reserved=1)
    assert not manager.can_start([7, 8], num_tokens=2)
    assert not manager.can_start([1, 2, 3, 9], num_tokens=4, salt="other")


def test_salts_share_nothing() -> None:
    manager = manager_of(16)
    assert serve(manager, "a", [1, 2, 3], salt="A") == 0

    assert manager.match_len([1, 2, 3]) == 0
    assert serve(manager, "b", [1, 2, 3], salt="B") == 0
    assert serve(manager, "c", [1, 2, 3]) == 0
    assert serve(manager, "d", [1, 2, 3], salt="A") == 2


@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_that_a_rolling_hash_confuses_do_not_meet(page_size: int) -> None:
    """+31 on one token and -1 on the next leave a hash of the form h * 31 + token unchanged."""
    manager = manager_of(64, page_size)
    token_ids = [100 + i for i in range(2 * 16)]
    other = [*token_ids[:16], token_ids[16] + 1, token_ids[17] - 31, *token_ids[18:]]
    serve(manager, "a", token_ids)

    assert serve(manager, "b", other) == 16
    assert serve(manager, "c", other) == (31 if page_size == 1 else 16)
    assert serve(manager, "d", token_ids) == (31 if page_size == 1 else 16)


def test_abort_during_prefill_leaves_no_trace_of_what_was_not_committed() -> None:
    """Abort after the first of three chunks, fill the pool with others, send the prompt again."""
    manager = manager_of(6, page_size=2)
    prompt = [1, 2, 3, 4, 5, 6]
    manager.start("a", prompt)
    manager.grow("a", 6)
    manager.commit("a", prompt[:2])
    manager.release("a")
    manager.check_integrity()

    assert manager.match_len(prompt) == 2
    assert serve(manager, "other", [9] * 12) == 0  # all six pages
    assert manager.match_len(prompt) == 0
    assert serve(manager, "again", prompt) == 0


def test_pages_survive_five_hundred_aborts_at_any_point() -> None:
    manager = manager_of(40, page_size=4)
    rng = random.Random(7)
    for i in range(500):
        token_ids = [rng.randrange(2) for _ in range(rng.randrange(1, 40))]
        manager.start(f"r{i}", token_ids)
        if rng.random() < 0.9 and manager.grow(f"r{i}", len(token_ids)):
            manager.commit(f"r{i}", token_ids[: rng.randrange(len(token_ids) + 1)])
        if i >= 3:
            manager.release(f"r{i - 3}")  # so that up to three others run
        manager.check_integrity()
    for i in range(497, 500):
        manager.release(f"r{i}")

    manager.check_integrity()
    usage = manager.usage()
    assert (usage.held, usage.cached + usage.free) == (0, 40)
    manager.start("large", [5] * 160)
    assert manager.grow("large", 160)


def test_release_happens_exactly_once() -> None:
    manager = manager_of(4)
    manager.start("a", [1])
    with pytest.raises(PageError, match="a holds pages already"):
        manager.start("a", [1])
    manager.release("a")

    with pytest.raises(PageError, match="a holds no pages"):
        manager.release("a")


def test_without_prefix_caching_nothing_is_kept_or_counted() -> None:
    manager = manager_of(4, enable_prefix_caching=False)

    assert serve(manager, "a", [1, 2, 3]) == 0
    assert serve(manager, "b", [1, 2, 3]) == 0
    assert manager.usage() == PageUsage(held=0, cached=0, free=4)
    assert (manager.prefix_queries, manager.prefix_hits) == (0, 0)


def test_prefix_counters_count_tokens_once_a_request() -> None:
    manager = manager_of(8, page_size=2)
    serve(manager, "a", [1, 2, 3, 4, 5])
    serve(manager, "b", [1, 2, 3, 4, 6, 7])
    assert (manager.prefix_queries, manager.prefix_hits) == (11, 4)

    manager.start("b", [1, 2, 3, 4, 6, 7], is_resumed=True)
    assert (manager.prefix_queries, manager.prefix_hits) == (11, 4)


def test_request_that_fell_behind_takes_over_the_pages_of_who_is_ahead() -> None:
    """b has begun page 1 itself and holds page 2 for later: both go back, and a's are read in their place."""
    manager = manager_of(12, page_size=2)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    manager.start("b", prompt)
    manager.grow("b", 6)
    manager.commit("b", prompt[:3])
    manager.start("a", prompt)
    manager.grow("a", 7)
    manager.commit("a", prompt[:6])

    assert manager.catch_up("b", prompt, cached_len=3) == 3

    assert manager.pages("a") == [0, 3, 4, 5]
    assert manager.pages("b") == [0, 3, 4]
    assert manager.usage() == PageUsage(held=4, cached=0, free=8)
    assert (manager.prefix_queries, manager.prefix_hits) == (14, 2 + 3)
    assert manager.catch_up("b", prompt, cached_len=6) == 0
    manager.check_integrity()
    manager.release("a")
    manager.release("b")
    manager.check_integrity()


def test_request_that_nobody_is_ahead_of_keeps_its_pages() -> None:
    manager = manager_of(12, page_size=2)
    for request_id, last, salt in [("a", 5, ""), ("b", 6, ""), ("c", 5, "other")]:
        manager.start(request_id, [1, 2, 3, last, 7], salt)
        manager.grow(request_id, 3)
    manager.commit("a", [1, 2])
    manager.grow("a", 4)
    manager.commit("a", [1, 2, 3, 5])
    manager.commit("b", [1, 2, 3])

    assert manager.catch_up("b", [1, 2, 3, 6, 7], cached_len=3) == 0
    assert manager.catch_up("c", [1, 2, 3, 5, 7], cached_len=0) == 0
    assert manager.pages("b") == [2, 3]
    assert manager.pages("c") == [4, 5]


def test_last_token_is_never_taken_over() -> None:
    manager = manager_of(8)
    for request_id in ["a", "b"]:
        manager.start(request_id, [1, 2, 3])
    manager.grow("a", 3)
    manager.commit("a", [1, 2, 3])

    assert manager.catch_up("b", [1, 2, 3], cached_len=0) == 2


def test_without_prefix_caching_nothing_is_taken_over() -> None:
    manager = manager_of(8, enable_prefix_caching=False)
    for request_id in ["a", "b"]:
        manager.start(request_id, [1, 2, 3])
    manager.grow("a", 3)
    manager.commit("a", [1, 2, 3])

    assert manager.catch_up("b", [1, 2, 3], cached_len=0) == 0


def test_what_a_resumed_request_takes_over_is_not_counted_again() -> None:
    manager = manager_of(8)
    manager.start("a", [1, 2, 3])
    manager.start("b", [1, 2, 3], is_resumed=True)
    manager.grow("a", 3)
    manager.commit("a", [1, 2, 3])

    assert manager.catch_up("b", [1, 2, 3], cached_len=0) == 2
    assert (manager.prefix_queries, manager.prefix_hits) == (3, 0)


def test_lost_page_is_found() -> None:
    manager = manager_of(4)
    manager._allocator.allocate(1)

    with pytest.raises(PageError, match=r"pages \[0\] belong to nobody"):
        manager.check_integrity()


def test_page_with_two_owners_is_found() -> None:
    manager = manager_of(4)
    manager.start("a", [1])
    manager.grow("a", 1)
    manager._allocator.free([0])

    with pytest.raises(PageError, match="page 0 belongs to the allocator and to a"):
        manager.check_integrity()


def test_table_that_left_the_tree_is_found() -> None:
    manager = manager_of(4)
    manager.start("a", [1, 2])
    manager.grow("a", 2)
    manager.commit("a", [1, 2])
    manager._tables["a"].pages[:] = [1, 0]

    with pytest.raises(PageError, match="a holds page 1 where the prefix cache has 0"):
        manager.check_integrity()
