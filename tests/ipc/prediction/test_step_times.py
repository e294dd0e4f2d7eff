"""How long a step of any size takes, from those that were measured."""

import pytest

from legato.ipc.messages import EngineStats
from legato.ipc.prediction.step_times import StepCurve, StepTimes


def measured(*steps: tuple[int, float]) -> StepTimes:
    """Of steps with so many tokens, in so many seconds."""
    times, tokens, busy_s = StepTimes(), 0, 0.0
    for num_tokens, seconds in steps:
        tokens, busy_s = tokens + num_tokens, busy_s + seconds
        times.record(EngineStats(tokens=tokens, busy_s=busy_s))
    return times


@pytest.mark.parametrize(
    ("num_tokens", "seconds"),
    [(1, 0.25), (10, 0.25), (60, 0.75), (110, 1.25), (210, 2.25)],
)
def test_curve_is_straight_between_points_and_beyond_the_last(num_tokens: int, seconds: float) -> None:
    assert StepCurve([(10, 0.25), (110, 1.25)]).seconds(num_tokens) == pytest.approx(seconds)


def test_larger_step_is_never_thought_quicker() -> None:
    assert StepCurve([(10, 0.5), (20, 0.25)]).seconds(1000) == 0.5


def test_nothing_is_known_before_a_step_was_measured() -> None:
    assert measured().curve() is None


def test_of_one_size_of_step_larger_ones_are_thought_rather_too_slow() -> None:
    curve = measured((1, 0.1), (1, 0.1)).curve()
    assert curve is not None
    assert curve.seconds(1) == pytest.approx(0.1)
    assert curve.seconds(21) == pytest.approx(0.1 + 20 * 0.05)


def test_times_follow_an_engine_that_becomes_slower() -> None:
    curve = measured(*[(1, 0.1), (64, 0.5)] * 50, *[(64, 1.0)] * 10).curve()
    assert curve is not None
    assert curve.seconds(64) == pytest.approx(1.0, rel=0.2)
    assert curve.seconds(1) > 0.14  # so does the size that was not seen since


def test_many_small_steps_take_nothing_from_what_is_known_of_large_ones() -> None:
    curve = measured((512, 2.0), *[(1, 0.1)] * 1000).curve()
    assert curve is not None
    assert curve.seconds(512) == pytest.approx(2.0)


def test_counters_that_begin_again_with_another_engine_are_no_step() -> None:
    times = measured((100, 1.0), (1, 0.1))
    times.record(EngineStats(tokens=3, busy_s=0.2))
    times.record(EngineStats(tokens=4, busy_s=0.3))
    curve = times.curve()
    assert curve is not None
    assert curve.seconds(1) == pytest.approx(0.1)
