"""Requests that may end the engine are computed first, one at a time, with nobody beside them."""

import pytest

from tests.scheduler.driver import Driver, expected_output, make_request, make_scheduler


@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
def test_suspects_have_steps_of_their_own_before_all_others(batching: str) -> None:
    driver = Driver(make_scheduler(batching=batching), lookahead=1)
    requests = [make_request(name, 3, is_suspect=name in ("b", "d")) for name in "abcd"]
    for each in requests:
        driver.scheduler.add(each)
    assert driver.step() == {"b": 3}
    assert driver.step() == {"d": 3}
    driver.run()
    assert driver.tokens == {each.request_id: expected_output(each) for each in requests}


def test_others_go_on_as_soon_as_the_last_suspect_has_sampled() -> None:
    driver = Driver(make_scheduler(max_step_tokens=4))
    driver.scheduler.add(make_request("innocent", 2))
    driver.scheduler.add(make_request("suspect", 7, is_suspect=True))
    assert [driver.step() for _ in range(3)] == [
        {"suspect": 4},
        {"suspect": 3},
        {"suspect": 1, "innocent": 2},
    ]


def test_suspect_waits_for_a_row_while_those_go_on_that_have_one() -> None:
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.scheduler.add(make_request("a", 2, max_tokens=2, is_suspect=True))
    driver.scheduler.add(make_request("urgent", 2, priority=-1))
    driver.scheduler.add(make_request("b", 2, priority=-2, is_suspect=True))
    assert [driver.step() for _ in range(4)] == [{"a": 2}, {"a": 1}, {"b": 2}, {"b": 1}]


def test_suspect_that_does_not_fit_lets_the_others_run_and_nobody_pass_it() -> None:
    driver = Driver(make_scheduler(num_pages=4, page_size=4, max_preemptions=0))
    driver.scheduler.add(make_request("large", 6, max_tokens=7))
    driver.step()
    driver.scheduler.add(make_request("suspect", 8, max_tokens=1, is_suspect=True))
    driver.scheduler.add(make_request("small", 1, max_tokens=1))
    assert driver.step() == {"large": 1}
    driver.run()
    assert {"suspect": 8} in driver.shares
    assert driver.shares.index({"suspect": 8}) < driver.shares.index({"small": 1})


def test_suspect_that_leaves_holds_nobody_up() -> None:
    driver = Driver(make_scheduler(max_step_tokens=4))
    driver.scheduler.add(make_request("suspect", 7, is_suspect=True))
    driver.scheduler.add(make_request("innocent", 2))
    driver.step()
    driver.scheduler.abort("suspect")
    assert driver.step() == {"innocent": 2}
