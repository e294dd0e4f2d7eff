"""Who is computed when: budgets, chunks, turns, preemption, aborts."""

import pytest

from legato.core.request import RequestState
from legato.core.sampling_params import FinishReason
from tests.scheduler.driver import Driver, expected_output, make_request, make_scheduler


@pytest.fixture(params=[0, 1], ids=["plain", "overlap"])
def lookahead(request: pytest.FixtureRequest) -> int:
    return request.param


def test_prompts_and_decodes_share_a_step() -> None:
    driver = Driver(make_scheduler(max_step_tokens=16))
    driver.scheduler.add(make_request("a", 4))
    assert driver.step() == {"a": 4}
    driver.scheduler.add(make_request("b", 5))
    assert driver.step() == {"a": 1, "b": 5}
    assert driver.step() == {"a": 1, "b": 1}


def test_long_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    driver = Driver(make_scheduler(max_step_tokens=4))
    driver.scheduler.add(make_request("short", 2))
    driver.scheduler.add(make_request("long", 7))
    assert driver.step() == {"short": 2, "long": 2}
    assert driver.step() == {"short": 1, "long": 3}
    assert driver.step() == {"short": 1, "long": 2}


def test_long_prompt_takes_half_the_budget_while_others_wait_and_all_of_it_alone() -> None:
    driver = Driver(make_scheduler(max_step_tokens=8))
    driver.scheduler.add(make_request("long", 24))
    assert driver.step() == {"long": 8}
    driver.scheduler.add(make_request("short", 4))
    assert driver.step() == {"long": 4, "short": 4}
    assert driver.step() == {"short": 1, "long": 7}


def test_prompts_beside_decodes_get_a_smaller_budget_and_share_it_with_who_waits() -> None:
    driver = Driver(make_scheduler(max_step_tokens=16, mixed_prefill_tokens=4))
    driver.scheduler.add(make_request("stream", 2, max_tokens=4))
    driver.step()
    driver.scheduler.add(make_request("long", 20))
    assert driver.step() == {"stream": 1, "long": 4}
    driver.scheduler.add(make_request("short", 2))
    assert driver.step() == {"stream": 1, "long": 2, "short": 2}
    assert driver.step() == {"stream": 1, "short": 1, "long": 4}
    driver.scheduler.abort("short")
    assert driver.step() == {"long": 10}  # nobody decodes: the whole budget


def test_given_length_of_a_prompts_chunk_holds_while_others_wait_in_any_step() -> None:
    driver = Driver(make_scheduler(max_step_tokens=16, mixed_prefill_tokens=8, long_prefill_tokens=3))
    for name in ("a", "b"):
        driver.scheduler.add(make_request(name, 20))
    assert driver.step() == {"a": 3, "b": 3}


def test_prompt_whose_rest_fits_gets_it_whole_though_others_wait() -> None:
    driver = Driver(make_scheduler(max_step_tokens=16))
    for name, prompt_len in (("a", 14), ("b", 20), ("c", 6)):
        driver.scheduler.add(make_request(name, prompt_len, max_tokens=1))
    assert driver.step() == {"a": 14, "b": 2}  # not 8 of each, to come both in the next step
    assert driver.step() == {"b": 8, "c": 6}


def test_more_decodes_than_the_budget_take_turns_longest_waiting_first() -> None:
    driver = Driver(make_scheduler(max_step_tokens=2, batching="prefill-first"))
    for name in "abc":
        driver.scheduler.add(make_request(name, 1, max_tokens=5))
    assert [driver.step() for _ in range(2)] == [{"a": 1, "b": 1}, {"c": 1}]
    assert [set(driver.step()) for _ in range(4)] == [{"a", "b"}, {"a", "c"}, {"b", "c"}, {"a", "b"}]


def test_who_comes_to_decode_stands_behind_those_who_wait_for_a_turn() -> None:
    driver = Driver(make_scheduler(max_step_tokens=1, batching="prefill-first"))
    for name in "abc":
        driver.scheduler.add(make_request(name, 1, max_tokens=9))
    assert [driver.step() for _ in range(4)] == [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 1}]
    driver.scheduler.add(make_request("new", 1, max_tokens=9))
    assert [set(driver.step()) for _ in range(5)] == [{"new"}, {"b"}, {"c"}, {"a"}, {"new"}]


def test_priority_goes_before_arrival() -> None:
    driver = Driver(make_scheduler(max_num_seqs=1))
    for name, priority in (("late", 5), ("normal", 0), ("urgent", -1)):
        driver.scheduler.add(make_request(name, 2, max_tokens=1, priority=priority))
    assert [driver.step() for _ in range(3)] == [{"urgent": 2}, {"normal": 2}, {"late": 2}]


def test_a_free_row_is_taken_at_the_next_step() -> None:
    driver = Driver(make_scheduler(max_num_seqs=2))
    driver.scheduler.add(make_request("a", 2, max_tokens=1))
    driver.scheduler.add(make_request("b", 2, max_tokens=3))
    driver.scheduler.add(make_request("c", 2, max_tokens=1))
    assert driver.step() == {"a": 2, "b": 2}
    assert driver.step() == {"b": 1, "c": 2}


def test_max_tokens_one_gives_one_token(lookahead: int) -> None:
    driver = Driver(make_scheduler(), lookahead)
    driver.scheduler.add(make_request("a", 3, max_tokens=1))
    driver.run()
    assert len(driver.tokens["a"]) == 1
    assert driver.finished == {"a": FinishReason.LENGTH}


def test_stop_wins_when_the_last_allowed_token_is_an_ending_one(lookahead: int) -> None:
    request = make_request("a", 3, max_tokens=3)
    request.ending_ids = frozenset({expected_output(request)[2]})
    driver = Driver(make_scheduler(), lookahead)
    driver.scheduler.add(request)
    driver.run()
    assert len(driver.tokens["a"]) == 3
    assert driver.finished == {"a": FinishReason.STOP}


def test_nothing_is_computed_for_a_request_that_has_its_length(lookahead: int) -> None:
    driver = Driver(make_scheduler(), lookahead)
    driver.scheduler.add(make_request("a", 3, max_tokens=4))
    driver.run()
    assert [share["a"] for share in driver.shares] == [3, 1, 1, 1]


def test_prefix_hit_leaves_the_last_prompt_token_to_compute() -> None:
    prompt = list(range(100, 116))
    driver = Driver(make_scheduler(page_size=4))
    driver.scheduler.add(make_request("first", prompt, max_tokens=1))
    driver.run()
    again = make_request("again", prompt, max_tokens=1)
    driver.scheduler.add(again)
    assert driver.step() == {"again": 4}
    assert again.hit_len == 12


def test_two_that_arrive_with_one_prefix_share_it_from_the_second_chunk_on() -> None:
    prompt = list(range(100, 116))
    driver = Driver(make_scheduler(max_step_tokens=16, long_prefill_tokens=16, page_size=4))
    driver.scheduler.add(make_request("a", [*prompt, 1], max_tokens=2))
    driver.scheduler.add(make_request("b", [*prompt, 2], max_tokens=2))
    assert driver.step() == {"a": 16}
    assert driver.step() == {"a": 1, "b": 1}


def test_youngest_is_preempted_and_gets_the_same_tokens_later(lookahead: int) -> None:
    old, young = make_request("old", 8, max_tokens=16), make_request("young", 8, max_tokens=16)
    driver = Driver(make_scheduler(num_pages=7, page_size=4), lookahead)
    driver.scheduler.add(old)
    driver.scheduler.add(young)
    driver.run()
    assert young.num_preemptions > 0
    assert old.num_preemptions == 0
    assert driver.tokens == {"old": expected_output(old), "young": expected_output(young)}


def test_a_request_is_preempted_at_most_so_often(lookahead: int) -> None:
    scheduler = make_scheduler(num_pages=12, page_size=2, max_preemptions=2)
    driver = Driver(scheduler, lookahead)
    requests = [make_request(f"r{i}", 4, max_tokens=16) for i in range(6)]
    for request in requests:
        scheduler.add(request)
    driver.run()
    assert scheduler.num_preemptions > 0
    assert max(request.num_preemptions for request in requests) <= 2
    assert driver.tokens == {request.request_id: expected_output(request) for request in requests}


def test_request_as_large_as_the_pool_completes(lookahead: int) -> None:
    driver = Driver(make_scheduler(num_pages=4, page_size=4), lookahead)
    whole = make_request("whole", 9, max_tokens=8)  # 17 tokens, K/V for 16 of them: the last is not computed
    driver.scheduler.add(whole)
    driver.scheduler.add(make_request("tiny", 1, max_tokens=1))
    driver.run()
    assert driver.tokens["whole"] == expected_output(whole)
    assert len(driver.tokens["tiny"]) == 1


def test_two_half_prefilled_prompts_do_not_lock_each_other_out(lookahead: int) -> None:
    driver = Driver(make_scheduler(num_pages=8, page_size=4, max_step_tokens=8), lookahead)
    requests = [make_request(name, 24, max_tokens=4) for name in ("a", "b", "c")]
    for request in requests:
        driver.scheduler.add(request)
    driver.run()
    assert driver.tokens == {request.request_id: expected_output(request) for request in requests}


@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_abort_frees_row_and_pages_at_once(when: int, lookahead: int) -> None:
    scheduler = make_scheduler(max_step_tokens=8, num_pages=16, page_size=4)
    driver = Driver(scheduler, lookahead)
    request = make_request("gone", 12, max_tokens=20)
    scheduler.add(request)
    for _ in range(when):
        driver.step()
    scheduler.abort("gone")
    assert request.state is RequestState.FINISHED
    assert not scheduler.has_requests
    scheduler.check_integrity()
    driver.run()
    assert "gone" not in driver.finished


def test_abort_of_a_prefill_leaves_a_sound_cache(lookahead: int) -> None:
    prompt = list(range(100, 120))
    scheduler = make_scheduler(max_step_tokens=8, num_pages=16, page_size=4)
    driver = Driver(scheduler, lookahead)
    scheduler.add(make_request("gone", prompt, max_tokens=4))
    driver.step()
    scheduler.abort("gone")
    again = make_request("again", prompt, max_tokens=4)
    scheduler.add(again)
    driver.run()  # the driver checks that every page it reads holds this prefix
    assert driver.tokens["again"] == expected_output(again)


def test_abort_of_an_unknown_request_is_harmless() -> None:
    make_scheduler().abort("nobody")


def test_prefill_first_lets_decodes_wait_for_prompts() -> None:
    driver = Driver(make_scheduler(batching="prefill-first", max_step_tokens=8))
    driver.scheduler.add(make_request("a", 4))
    assert driver.step() == {"a": 4}
    driver.scheduler.add(make_request("b", 12))
    assert [driver.step() for _ in range(3)] == [{"b": 8}, {"b": 4}, {"a": 1, "b": 1}]
