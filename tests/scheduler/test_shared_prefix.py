"""Requests that arrive together and begin alike compute what they share once."""

import pytest

from legato.core.request import Request, RequestState
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.step_draft import StepDraft
from tests.scheduler.driver import Driver, expected_output, make_request, make_scheduler

PREFIX = list(range(100, 116))


@pytest.fixture(params=[0, 1], ids=["plain", "overlap"])
def lookahead(request: pytest.FixtureRequest) -> int:
    return request.param


def add_alike(
    scheduler: Scheduler, prefix: list[int], count: int, own_len: int = 1, **fields: object
) -> list[Request]:
    """Requests with one prefix and `own_len` tokens of their own each."""
    requests = []
    for number in range(count):
        own = [500 + number * own_len + place for place in range(own_len)]
        requests.append(make_request(f"r{number}", prefix + own, **fields))  # type: ignore[arg-type]
        scheduler.add(requests[-1])
    return requests


def run_prefills(driver: Driver) -> int:
    """Run to the end; how many tokens of prompts were computed."""
    driver.run()
    num_decodes = sum(len(output) - 1 for output in driver.tokens.values())
    return sum(sum(share.values()) for share in driver.shares) - num_decodes


def test_thirty_two_that_arrive_at_once_compute_a_long_prefix_once(lookahead: int) -> None:
    scheduler = make_scheduler(max_num_seqs=64, max_step_tokens=512, num_pages=400, page_size=16)
    driver = Driver(scheduler, lookahead)
    requests = add_alike(scheduler, list(range(1024)), 32, own_len=32, max_tokens=1)

    assert run_prefills(driver) == 1024 + 32 * 32

    assert len(driver.shares) == 4  # of 512 tokens each: no step is less than full
    assert sum(request.hit_len for request in requests) == 31 * 1024
    assert scheduler.kv.prefix_hits == 31 * 1024
    assert scheduler.kv.prefix_queries == 32 * 1056
    assert driver.tokens == {request.request_id: expected_output(request) for request in requests}


def test_pages_that_a_plan_fills_are_hit_later_in_the_same_plan() -> None:
    driver = Driver(make_scheduler(page_size=4))
    add_alike(driver.scheduler, PREFIX, 3)
    assert driver.step() == {"r0": 17, "r1": 1, "r2": 1}


def test_the_second_goes_on_where_the_first_stopped_and_both_skip_what_the_other_did() -> None:
    """The first page that the second has begun itself is given up for the first's."""
    driver = Driver(make_scheduler(page_size=4, max_step_tokens=12, long_prefill_tokens=6))
    first, second = add_alike(driver.scheduler, PREFIX, 2)

    assert driver.step() == {"r0": 6, "r1": 6}  # [0, 6) and [4, 10)
    assert (first.cached_len, second.cached_len) == (6, 10)
    assert driver.step() == {"r0": 6, "r1": 5}  # [8, 14) and [12, 17)
    assert (first.cached_len, second.state) == (14, RequestState.DECODING)
    assert driver.step() == {"r0": 1, "r1": 1}  # [16, 17)
    assert (first.hit_len, second.hit_len) == (2 + 2, 4 + 2)
    driver.run()
    assert driver.tokens["r0"] == expected_output(first)


def test_even_a_first_page_is_given_up_for_one_that_was_full_sooner() -> None:
    driver = Driver(make_scheduler(page_size=8, max_step_tokens=16, long_prefill_tokens=3))
    first, second = add_alike(driver.scheduler, PREFIX, 2)
    lengths = []
    for _ in range(3):
        assert driver.step() == {"r0": 3, "r1": 3}
        lengths.append((first.cached_len, second.cached_len))
    assert lengths == [(3, 3), (6, 6), (9, 11)]  # page 0 is full with the first's third chunk
    driver.run()
    assert driver.tokens["r1"] == expected_output(second)


def test_same_prompt_at_once_is_computed_once_but_for_the_last_page(lookahead: int) -> None:
    driver = Driver(make_scheduler(page_size=4), lookahead)
    add_alike(driver.scheduler, PREFIX, 4, own_len=0)
    assert driver.step() == {"r0": 16, "r1": 4, "r2": 4, "r3": 4}
    driver.run()


@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
def test_every_policy_shares(batching: str, lookahead: int) -> None:
    driver = Driver(make_scheduler(page_size=4, batching=batching), lookahead)
    add_alike(driver.scheduler, PREFIX, 4)
    assert run_prefills(driver) == 16 + 4


def test_without_prefix_caching_nothing_is_shared(lookahead: int) -> None:
    driver = Driver(make_scheduler(page_size=4, enable_prefix_caching=False), lookahead)
    requests = add_alike(driver.scheduler, PREFIX, 3)
    assert run_prefills(driver) == 3 * 17
    assert [request.hit_len for request in requests] == [0, 0, 0]


def test_salts_are_not_shared_within_a_step_either() -> None:
    driver = Driver(make_scheduler(page_size=4))
    for name, salt in (("a", "A"), ("b", "B"), ("c", "A")):
        driver.scheduler.add(make_request(name, [*PREFIX, 1], cache_salt=salt))
    assert driver.step() == {"a": 17, "b": 17, "c": 1}


def test_when_the_first_is_aborted_the_second_keeps_what_it_took_over(lookahead: int) -> None:
    driver = Driver(make_scheduler(page_size=4, num_pages=12), lookahead)
    _, second = add_alike(driver.scheduler, PREFIX, 2)
    driver.step()
    driver.scheduler.abort("r0")
    driver.scheduler.add(make_request("other", 20, max_tokens=8))  # takes what r0 gave back
    driver.run()
    assert driver.tokens["r1"] == expected_output(second)


def test_nobody_is_preempted_whose_pages_a_later_one_of_the_plan_reads(lookahead: int) -> None:
    """A decode that lacks a page takes it from who is not planned; those planned lean on each other."""
    scheduler = make_scheduler(page_size=4, num_pages=16, max_step_tokens=16, long_prefill_tokens=4)
    driver = Driver(scheduler, lookahead)
    old = [make_request(f"old{number}", 7, max_tokens=20) for number in range(2)]
    for request in old:
        scheduler.add(request)
    driver.step()
    requests = old + add_alike(scheduler, PREFIX, 4, own_len=4, max_tokens=6)
    driver.run()  # the driver checks that nobody leaves a plan, and every page that is read
    assert scheduler.num_preemptions > 0
    assert driver.tokens == {request.request_id: expected_output(request) for request in requests}


def test_victim_is_never_one_of_the_plan_though_it_be_the_youngest() -> None:
    scheduler = make_scheduler(page_size=4)
    oldest = make_request("oldest", 4)
    scheduler.add(oldest)
    Driver(scheduler).step()
    add_alike(scheduler, PREFIX, 2)
    draft = StepDraft(step=1, max_tokens=64, max_scores=64)
    scheduler._add_prefills(draft)
    assert draft.chunks.keys() == {"r0", "r1"}

    assert scheduler._youngest(draft) is oldest
