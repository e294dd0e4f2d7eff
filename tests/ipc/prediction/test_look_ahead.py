"""Steps to come: prompts in turn, in the room that decodes leave, in rows that fall free."""

import pytest

from legato.core.config import SchedulerConfig
from legato.ipc.prediction.look_ahead import MAX_STEPS, LookAhead, Prompt
from legato.ipc.prediction.step_times import StepCurve

# A step takes 1 s and 10 ms a token.
CURVE = StepCurve([(0, 1.0), (1000, 11.0)])
CONFIG = SchedulerConfig(
    max_num_seqs=4,
    max_step_tokens=100,
    mixed_prefill_tokens=20,
    long_prefill_tokens=None,
    max_model_len=10_000,
)


def seconds(
    prompt_len: int,
    waiting: list[tuple[int, int]] | None = None,
    ends: list[int] | None = None,
    *,
    after_s: float = 0.0,
    prefill_first: bool = False,
) -> float:
    prompts = [Prompt(*each) for each in waiting or []]
    ahead = LookAhead(CURVE, CONFIG, prompts, ends or [], prefill_first=prefill_first)
    return ahead.first_token_s(prompt_len, after_s)


def test_prompt_alone_takes_as_many_steps_as_it_fills() -> None:
    assert seconds(50) == pytest.approx(1.5)
    assert seconds(250) == pytest.approx(2 * 2.0 + 1.5)


def test_while_others_decode_the_room_is_small_and_the_step_under_way_ends_first() -> None:
    # 1.5 steps of the two that decode, then 20, 20 and 10 tokens beside them
    assert seconds(50, ends=[100, 100]) == pytest.approx(1.5 * 1.02 + 2 * 1.22 + 1.12)


def test_prompt_waits_for_those_before_it() -> None:
    # 1.5 steps of the other prompt, then 20, 20 and 10 tokens beside its decodes
    assert seconds(50, waiting=[(80, 5)]) == pytest.approx(1.5 * 1.8 + 2 * 1.21 + 1.11)


def test_short_prompt_shares_the_step_with_a_long_one_before_it() -> None:
    assert seconds(10, waiting=[(1000, 5)]) < 2 * seconds(10, waiting=[(100, 5)])


def test_prompt_waits_for_a_row() -> None:
    soon, late = seconds(10, ends=[10, 90, 90, 90]), seconds(10, ends=[50, 90, 90, 90])
    assert late - soon == pytest.approx(40 * 1.04)


def test_rows_go_to_those_who_came_before() -> None:
    first, second = seconds(10, ends=[10, 30, 90, 90]), seconds(10, waiting=[(10, 60)], ends=[10, 30, 90, 90])
    assert second - first == pytest.approx(20 * 1.04, rel=0.1)


def test_prefill_first_lets_nobody_decode_meanwhile() -> None:
    assert seconds(100, ends=[50], prefill_first=True) == pytest.approx(1.5 * 1.01 + 2.0)


def test_work_beyond_the_last_step_looked_at_goes_on_at_its_rate() -> None:
    num_steps = 4 * MAX_STEPS
    assert seconds(100 * num_steps) == pytest.approx(num_steps * 2.0)


def test_prompt_that_comes_later_waits_for_less() -> None:
    ends = [50, 90, 90, 90]  # steps of 1.04 s
    assert seconds(10, ends=ends, after_s=20.8) == pytest.approx(seconds(10, ends=ends) - 20.8)
    assert seconds(10, waiting=[(1000, 1)], after_s=100) == seconds(10)


def test_wait_that_is_shared_with_a_long_prompt_lasts_as_long_as_that_is_computed() -> None:
    """Ten steps of 2 s: half of each is for those who come meanwhile, and the rest of the wait is no less."""
    at_once, later, after = (seconds(10, waiting=[(1000, 1)], after_s=each) for each in (0, 10, 20.1))
    assert at_once == later > 4
    assert after == seconds(10)
