"""The stopwatch of a request."""

from legato.core.timing import Stopwatch, Timing


def test_time_is_parted_at_the_first_plan_and_at_the_first_token() -> None:
    watch = Stopwatch(accepted_at=10)
    watch.start(12)
    assert watch.token(17) == Timing(queue_s=2, prefill_s=5, decode_s=0)
    watch.start(18)  # planned again after a preemption
    assert watch.token(20) == Timing(queue_s=2, prefill_s=5, decode_s=3)


def test_what_an_answer_takes_after_its_engine_is_replaced_is_decoding() -> None:
    assert Timing(2, 5, 3).resumed(Timing(1, 4, 2)) == Timing(queue_s=2, prefill_s=5, decode_s=10)
