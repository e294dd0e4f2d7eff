"""The manager against simple models, over random lives of many requests in a tiny pool."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from legato.core.config import CacheConfig
from legato.kvcache.manager import KVCacheManager, PageUsage
from tests.kvcache.prefix_model import Prefix, PrefixModel


class ManagerMachine(RuleBasedStateMachine):
    """Against PrefixModel, a count of pages, and the contents that pages would have.

    Each request writes its tokens to its pages as it grows. Whatever happens, the pages in its table still
    hold them: a page given to two, evicted under a holder or shared under wrong tokens shows at once.
    """

    @initialize(page_size=st.sampled_from([1, 2, 4]), num_pages=st.integers(3, 10))
    def build(self, page_size: int, num_pages: int) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self.manager = KVCacheManager(CacheConfig(num_pages=num_pages, page_size=page_size))
        self.model = PrefixModel(page_size)
        self.contents: dict[int, Prefix] = {}
        self.tokens: dict[str, list[int]] = {}  # of each running request: all it will ever have
        self.salts: dict[str, str] = {}
        self.written: dict[str, int] = {}  # tokens whose K/V is in its pages
        self.locked: dict[str, list[Prefix]] = {}
        self.num_private: dict[str, int] = {}
        self.num_started = 0

    def num_free(self) -> int:
        return self.num_pages - len(self.model.cached) - sum(self.num_private.values())

    def num_available(self) -> int:
        return self.num_free() + len(self.model.evictable())

    @rule(
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        salt=st.sampled_from(["", "A"]),
        wanted=st.integers(0, 14),
        reserved=st.integers(0, 3),
    )
    def start(self, token_ids: list[int], salt: str, wanted: int, reserved: int) -> None:
        hit = self.model.match(token_ids[:-1], salt)
        assert self.manager.match_len(token_ids, salt) == len(hit) * self.page_size
        promised = self.manager.can_start(token_ids, wanted, reserved, salt)

        request_id = f"r{self.num_started}"
        self.num_started += 1
        assert self.manager.start(request_id, token_ids, salt) == len(hit) * self.page_size
        assert list(self.manager.pages(request_id)) == self.model.pages(hit)
        self.model.use(hit)
        self.model.lock(hit)
        self.tokens[request_id] = token_ids + [0] * 14
        self.salts[request_id] = salt
        self.written[request_id] = len(hit) * self.page_size
        self.locked[request_id] = hit
        self.num_private[request_id] = 0

        is_grown = self.grow_to(request_id, wanted)
        assert promised == (is_grown and self.manager.num_available_pages >= reserved)

    def grow_to(self, request_id: str, num_tokens: int) -> bool:
        num_held = len(self.manager.pages(request_id))
        num_needed = max(0, self.manager.pages_for(num_tokens) - num_held)
        is_possible = num_needed <= self.num_available()
        before = list(self.manager.pages(request_id))
        assert self.manager.num_needed_pages(request_id, num_tokens) == num_needed
        assert self.manager.grow(request_id, num_tokens) == is_possible
        pages = list(self.manager.pages(request_id))
        assert pages[:num_held] == before
        assert len(pages) == num_held + (num_needed if is_possible else 0)
        if is_possible:
            self.model.evict(max(0, num_needed - self.num_free()))
            self.num_private[request_id] += num_needed
            self.write(request_id, num_tokens)
        return is_possible

    def write(self, request_id: str, num_tokens: int) -> None:
        tokens, salt = self.tokens[request_id], self.salts[request_id]
        for position in range(self.written[request_id], num_tokens):
            page = self.manager.pages(request_id)[position // self.page_size]
            self.contents[page] = (salt, tuple(tokens[: position + 1]))
        self.written[request_id] = max(self.written[request_id], num_tokens)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.integers(1, 4))
    def grow(self, data: st.DataObject, more: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.grow_to(request_id, min(self.written[request_id] + more, len(self.tokens[request_id])))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), back=st.integers(0, 3))
    def commit(self, data: st.DataObject, back: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.commit_first(request_id, max(0, self.written[request_id] - back))

    def commit_first(self, request_id: str, num_tokens: int) -> None:
        token_ids = self.tokens[request_id][:num_tokens]
        before = list(self.manager.pages(request_id))
        self.manager.commit(request_id, token_ids)
        assert list(self.manager.pages(request_id)) == before
        held = self.locked[request_id]
        prefixes = self.model.prefixes(token_ids, self.salts[request_id])
        if len(prefixes) > len(held):
            known = self.model.pages(held)  # of a page held twice, the tree's
            pages = [*known, *before[len(held) :]]
            duplicates = self.model.insert(token_ids, pages, self.salts[request_id])
            self.model.lock(prefixes[len(held) :])
            self.locked[request_id] = prefixes
            self.num_private[request_id] -= len(prefixes) - len(held) - len(duplicates)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        written = self.written[request_id]
        self.commit_first(request_id, written)
        known = self.tokens[request_id][: written + 5]
        held, found = self.locked[request_id], self.model.match(known[:-1], self.salts[request_id])
        before = list(self.manager.pages(request_id))
        gained = self.manager.catch_up(request_id, known, written)
        ahead = found[len(held) :]
        assert gained == (len(found) * self.page_size - written if ahead else 0)
        if ahead:
            self.model.use(found)
            self.model.lock(ahead)
            self.locked[request_id] = found
            self.num_private[request_id] -= len(before[len(held) : len(found)])
            before[len(held) : len(found)] = self.model.pages(ahead)
            self.written[request_id] += gained
        assert list(self.manager.pages(request_id)) == before

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.release(request_id)
        self.model.lock(self.locked.pop(request_id), -1)
        for by_request in (self.tokens, self.salts, self.written, self.num_private):
            by_request.pop(request_id)

    @invariant()
    def pages_are_where_the_model_has_them(self) -> None:
        self.manager.check_integrity()
        cached = len(self.model.evictable())
        free = self.num_free()
        assert self.manager.usage() == PageUsage(
            held=self.num_pages - cached - free, cached=cached, free=free
        )
        assert self.manager.num_available_pages == cached + free

    @invariant()
    def pages_of_running_requests_still_hold_their_tokens(self) -> None:
        for request_id, tokens in self.tokens.items():
            for i, page in enumerate(self.manager.pages(request_id)):
                end = min((i + 1) * self.page_size, self.written[request_id])
                if end > i * self.page_size:
                    assert self.contents[page] == (self.salts[request_id], tuple(tokens[:end]))


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(
    max_examples=75, stateful_step_count=40, derandomize=True, database=None, deadline=None
)


@pytest.mark.slow
class TestManagerAtLength(ManagerMachine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=60, database=None, deadline=None)
