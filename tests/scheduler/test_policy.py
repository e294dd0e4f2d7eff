"""Static rounds across the borders of requests, as the teaching server forms them."""

import logging

import pytest

from tests.scheduler.driver import Driver, make_request, make_scheduler


def rounds_of(driver: Driver) -> list[set[str]]:
    """Who was computed together, round by round: a round begins when a prompt runs and nobody decodes."""
    rounds: list[set[str]] = []
    for share in driver.shares:
        if not rounds or not set(share) <= rounds[-1]:
            rounds.append(set())
        rounds[-1] |= set(share)
    return rounds


def static_driver(names: str, max_num_seqs: int = 4, lookahead: int = 0, max_tokens: int = 3) -> Driver:
    driver = Driver(make_scheduler(batching="static", max_num_seqs=max_num_seqs), lookahead)
    for name in names:
        driver.scheduler.add(make_request(name, 3, max_tokens=max_tokens))
    return driver


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(
    ("names", "expected"),
    [("ABCDEF", ["ABCD", "EF"]), ("ABCDE", ["ABCD", "E"]), ("AB", ["AB"]), ("ABCDEFGH", ["ABCD", "EFGH"])],
)
def test_rounds_of_four(names: str, expected: list[str], lookahead: int) -> None:
    driver = static_driver(names, lookahead=lookahead)
    driver.run()
    assert rounds_of(driver) == [set(each) for each in expected]
    assert driver.scheduler.policy.num_rounds == len(expected)


def test_two_requests_of_two_and_three_prompts_give_rounds_of_four_and_one() -> None:
    driver = static_driver("AB")
    for name in "CDE":
        driver.scheduler.add(make_request(name, 3))
    driver.run()
    assert rounds_of(driver) == [set("ABCD"), set("E")]


def test_late_comer_waits_for_the_whole_round_though_rows_are_free() -> None:
    driver = static_driver("AB")
    driver.step()
    driver.scheduler.add(make_request("C", 3, max_tokens=1))
    driver.run()
    assert rounds_of(driver) == [set("AB"), set("C")]


def test_round_waits_for_its_slowest_member() -> None:
    driver = Driver(make_scheduler(batching="static", max_num_seqs=4))
    for name, max_tokens in zip("ABCDE", (1, 1, 1, 9, 1), strict=True):
        driver.scheduler.add(make_request(name, 3, max_tokens=max_tokens))
    driver.run()
    first_of_e = next(step for step, share in enumerate(driver.shares) if "E" in share)
    assert first_of_e == 9


def test_the_last_of_101_waits_a_whole_round_at_width_100() -> None:
    driver = Driver(make_scheduler(batching="static", max_num_seqs=100, max_step_tokens=1000, num_pages=400))
    names = [f"r{i}" for i in range(101)]
    for name in names:
        driver.scheduler.add(make_request(name, 3, max_tokens=3))
    driver.run()
    assert rounds_of(driver) == [set(names[:100]), {"r100"}]


def test_a_round_whose_prompts_take_several_steps_stays_one_round() -> None:
    driver = Driver(make_scheduler(batching="static", max_step_tokens=4, max_num_seqs=4))
    for name in "ABCDE":
        driver.scheduler.add(make_request(name, 4, max_tokens=2))
    driver.run()
    assert driver.scheduler.policy.num_rounds == 2
    assert max(step for step, share in enumerate(driver.shares) if set(share) & set("ABCD")) < min(
        step for step, share in enumerate(driver.shares) if "E" in share
    )


def test_round_ends_when_its_members_are_aborted() -> None:
    driver = static_driver("ABCDE")
    driver.step()
    for name in "ABCD":
        driver.scheduler.abort(name)
    assert driver.step() == {"E": 3}


def test_round_is_logged_with_the_padding_that_was_not_computed(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_scheduler(batching="static", max_num_seqs=4))
    for name, prompt_len in zip("ABCD", (5, 4, 4, 4), strict=True):
        driver.scheduler.add(make_request(name, prompt_len, max_tokens=1))
    with caplog.at_level(logging.INFO):
        driver.run()
    assert caplog.messages == [
        "round 1: 4 requests, longest 5, shape [4, 5], padding 3 (not computed), 1.0 s"
    ]
