"""Pages go out in a fixed order, and come back once."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from legato.kvcache.page_allocator import PageAllocator, PageError


def test_fresh_pool_gives_pages_in_ascending_order() -> None:
    allocator = PageAllocator(5)

    assert allocator.allocate(2) == [0, 1]
    assert allocator.allocate(0) == []
    assert allocator.allocate(3) == [2, 3, 4]
    assert allocator.num_free == 0


def test_pages_given_back_last_go_out_first_and_in_their_order() -> None:
    allocator = PageAllocator(6)
    allocator.allocate(6)
    allocator.free([4, 1])
    allocator.free([3, 0, 5])

    assert allocator.allocate(4) == [3, 0, 5, 4]
    assert allocator.free_pages() == (1,)


@pytest.mark.parametrize("num_pages", [3, -1])
def test_more_pages_than_are_free_are_refused(num_pages: int) -> None:
    allocator = PageAllocator(2)

    with pytest.raises(PageError, match=r"asked for -?\d pages, 2 of 2 are free"):
        allocator.allocate(num_pages)
    assert allocator.num_free == 2


@pytest.mark.parametrize(
    "pages", [[0, 2], [1, 1], [1, 4], [-1]], ids=["already free", "twice", "not of this pool", "negative"]
)
def test_wrong_page_given_back_is_caught_and_none_is_taken(pages: list[int]) -> None:
    allocator = PageAllocator(4)
    allocator.allocate(4)
    allocator.free([2])

    with pytest.raises(PageError, match="given back"):
        allocator.free(pages)
    assert allocator.free_pages() == (2,)


class AllocatorMachine(RuleBasedStateMachine):
    """Against two lists: what is out, and the stack of what is free."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(8)
        self.stack = [7, 6, 5, 4, 3, 2, 1, 0]
        self.out: list[int] = []

    @rule(num_pages=st.integers(0, 10))
    def allocate(self, num_pages: int) -> None:
        if num_pages > len(self.stack):
            with pytest.raises(PageError):
                self.allocator.allocate(num_pages)
            return
        expected = [self.stack.pop() for _ in range(num_pages)]
        assert self.allocator.allocate(num_pages) == expected
        self.out += expected

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(self.out), unique=True))
        self.allocator.free(pages)
        self.out = [page for page in self.out if page not in pages]
        self.stack += pages[::-1]

    @rule(page=st.integers(-1, 9), data=st.data())
    def free_wrongly(self, page: int, data: st.DataObject) -> None:
        good = data.draw(st.lists(st.sampled_from(self.out), unique=True)) if self.out else []
        if page in self.out and page not in good:
            good.append(page)  # then it stands there twice
        with pytest.raises(PageError):
            self.allocator.free([*good, page])

    @invariant()
    def every_page_is_out_or_free(self) -> None:
        assert list(self.allocator.free_pages()) == self.stack
        assert self.allocator.num_free == len(self.stack)
        assert sorted(self.stack + self.out) == list(range(8))


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(
    max_examples=50, stateful_step_count=30, derandomize=True, database=None, deadline=None
)
