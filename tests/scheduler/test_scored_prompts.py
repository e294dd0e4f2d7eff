"""Prompts that are scored, and requests that want no token: what a step computes for whom."""

import random

import pytest

from legato.core.request import RequestState
from legato.core.sampling_params import FinishReason
from tests.scheduler.driver import Driver, expected_output, expected_scores, make_request, make_scheduler


def shares(driver: Driver, num_steps: int) -> list[dict[str, int]]:
    return [driver.step() for _ in range(num_steps)]


def assert_right(driver: Driver, *requests) -> None:
    for request in requests:
        assert driver.tokens[request.request_id] == expected_output(request)
        assert driver.scores.get(request.request_id, []) == expected_scores(request)


def test_chunk_of_a_scored_prompt_is_bounded_by_the_scores_of_a_step() -> None:
    driver = Driver(make_scheduler(max_step_tokens=64, max_step_scores=4, max_num_seqs=1))
    request = make_request("a", 14, max_tokens=2, is_scored=True)
    driver.scheduler.add(request)
    # Position 12 is the last to be scored: with it comes the last token, whose logits are the sampler's.
    assert shares(driver, 5) == [{"a": 4}, {"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}]
    assert_right(driver, request)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_decodes_have_their_rows_whatever_is_scored(lookahead: int) -> None:
    driver = Driver(make_scheduler(max_step_scores=1, max_num_seqs=3), lookahead)
    requests = [make_request("a", 2, max_tokens=9), make_request("b", 3, max_tokens=9)]
    for request in requests:
        driver.scheduler.add(request)
    driver.step()
    requests.append(make_request("scored", 6, max_tokens=1, is_scored=True))
    driver.scheduler.add(requests[-1])
    assert shares(driver, 5) == [{"a": 1, "b": 1, "scored": 1}] * 4 + [{"a": 1, "b": 1, "scored": 2}]
    driver.run()
    assert_right(driver, *requests)


def test_scores_are_shared_like_tokens_and_others_do_not_wait_for_them() -> None:
    driver = Driver(make_scheduler(max_step_tokens=64, max_step_scores=4))
    requests = [make_request(name, 9, is_scored=name != "plain") for name in ("one", "two", "three", "plain")]
    for request in requests:
        driver.scheduler.add(request)
    assert driver.step() == {"one": 2, "two": 2, "plain": 9}
    assert driver.step() == {"one": 2, "two": 2, "plain": 1}
    driver.run()
    assert_right(driver, *requests)


def test_scored_prompt_takes_nothing_from_the_cache_and_gives_to_it_when_it_ends() -> None:
    prompt = list(range(100, 116))
    driver = Driver(make_scheduler(page_size=4, num_pages=64))
    requests = [make_request("first", prompt), make_request("scored", prompt, is_scored=True)]
    for request in requests:
        driver.scheduler.add(request)
        driver.run()
    assert [request.hit_len for request in requests] == [0, 0]
    assert driver.shares[-4] == {"scored": 16}
    assert driver.scheduler.kv.prefix_queries == 16, "it did not ask"

    driver = Driver(make_scheduler(page_size=4, num_pages=64))
    requests = [make_request("scored", prompt, is_scored=True), make_request("next", [*prompt, 7])]
    for request in requests:
        driver.scheduler.add(request)
        driver.run()
    assert [request.hit_len for request in requests] == [0, 16]
    assert_right(driver, *requests)


def test_scored_prompt_that_fills_the_pool_does_not_hold_the_caches_copy_of_it_too() -> None:
    prompt = list(range(100, 132))
    driver = Driver(make_scheduler(page_size=4, num_pages=8, max_step_scores=8))
    requests = [make_request("first", prompt, 0), make_request("scored", prompt, 1, is_scored=True)]
    for request in requests:
        driver.scheduler.add(request)
        driver.run()
    assert driver.scheduler.num_preemptions == 0
    assert_right(driver, *requests)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_preempted_prompt_keeps_its_scores_and_takes_what_they_cover_from_the_cache(lookahead: int) -> None:
    driver = Driver(make_scheduler(page_size=2, num_pages=12, max_step_scores=4), lookahead)
    older = make_request("older", 4, max_tokens=18)
    scored = make_request("scored", 18, max_tokens=2, is_scored=True)
    for request in (older, scored):
        driver.scheduler.add(request)
    while scored.num_preemptions == 0:
        driver.step()
    assert 0 < scored.scored_len < 17
    num_scored = scored.scored_len
    driver.run()
    assert_right(driver, older, scored)
    assert scored.hit_len == 0
    computed_again = sum(share.get("scored", 0) for share in driver.shares) - 18 - 1
    assert computed_again <= num_scored


@pytest.mark.parametrize("lookahead", [0, 1])
def test_request_for_no_token_computes_its_prompt_and_ends(lookahead: int) -> None:
    driver = Driver(make_scheduler(max_step_tokens=8, page_size=4, num_pages=4), lookahead)
    requests = [make_request("whole pool", 16, max_tokens=0), make_request("one token", 1, max_tokens=0)]
    requests.append(make_request("scored", 11, max_tokens=0, is_scored=True))
    for request in requests:
        driver.scheduler.add(request)
    driver.run()
    assert driver.tokens == {"whole pool": [], "one token": [], "scored": []}
    assert set(driver.finished.values()) == {FinishReason.LENGTH}
    assert_right(driver, *requests)


def test_request_for_no_token_that_is_preempted_in_flight_ends_all_the_same() -> None:
    driver = Driver(make_scheduler(page_size=2, num_pages=5), lookahead=1)
    older = make_request("older", 3, max_tokens=6)
    last = make_request("last", 6, max_tokens=0, is_scored=True)
    for request in (older, last):
        driver.scheduler.add(request)
    assert driver.step() == {"older": 3, "last": 6}
    driver.step()
    assert last.finish_reason is FinishReason.LENGTH
    driver.run()
    assert_right(driver, older, last)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_abort_of_a_scored_prompt_gives_everything_back(num_steps: int) -> None:
    driver = Driver(make_scheduler(max_step_scores=3), lookahead=1)
    request = make_request("gone", 9, max_tokens=0, is_scored=True)
    driver.scheduler.add(request)
    shares(driver, num_steps)
    driver.scheduler.abort("gone")
    assert request.state is RequestState.FINISHED
    driver.run()
    assert driver.scheduler.kv.usage().held == 0
    assert not driver.finished


def preempted_scenario(seed: int) -> int:
    """Many prompts, too few pages; how often one was preempted when part of it was scored."""
    rng = random.Random(seed)
    driver = Driver(
        make_scheduler(
            page_size=rng.choice([1, 2]),
            num_pages=rng.randint(24, 30),
            max_num_seqs=6,
            max_step_scores=rng.choice([1, 3]),
            max_preemptions=rng.randint(1, 6),
            enable_prefix_caching=rng.random() < 0.7,
        ),
        lookahead=seed % 2,
    )
    requests = [
        make_request(
            f"r{number}",
            rng.randint(1, 12),
            max_tokens=rng.choice([0, 6, 12]),
            is_scored=rng.random() < 0.6,
            priority=rng.choice([0, 0, 1]),
        )
        for number in range(9)
    ]
    for request in requests:
        driver.scheduler.add(request)
    num_cut = 0
    while driver.scheduler.has_requests:
        before = [(request.num_preemptions, request.scored_len) for request in requests]
        driver.step()
        for request, (num_preemptions, scored_len) in zip(requests, before, strict=True):
            num_cut += request.num_preemptions > num_preemptions and 0 < scored_len < request.score_end
            assert request.scored_len >= scored_len, "what is scored stays so"
    driver.run()
    assert_right(driver, *requests)
    return num_cut


def test_scored_prompts_come_through_any_number_of_preemptions() -> None:
    assert sum(preempted_scenario(seed) for seed in range(80)) > 20
