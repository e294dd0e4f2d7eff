"""A course: parts one after another that add up, gaps that are called so, a bound on how long it gets."""

import pytest

from legato.core.timing import MAX_PARTS, UNEXPLAINED, Course, Part, Stretch


def causes(course: Course) -> list[tuple[str, float]]:
    return [(part.cause, part.seconds) for part in course.parts]


def test_neighbours_of_one_cause_are_one_part() -> None:
    course = Course(10.0)
    course.add(Part("decode", 0.0, steps=1, tokens=1, others=2, mixed_steps=1, mixed_s=1.0), 11.0)
    course.add(Part("decode", 0.0, steps=1, tokens=1, others=5, other_tokens=7), 13.0)
    assert course.parts == [Part("decode", 3.0, 2, 2, 0, 5, 7, 1, 1.0)]


def test_time_between_two_stretches_is_unexplained() -> None:
    course = Course(0.0)
    course.extend(Stretch(0.0, 1.0, (Part("prefill", 1.0),)))
    course.extend(Stretch(1.25, 2.0, (Part("decode", 0.75),)))
    assert causes(course) == [("prefill", 1.0), (UNEXPLAINED, 0.25), ("decode", 0.75)]


def test_time_that_is_told_twice_counts_once() -> None:
    course = Course(0.0)
    course.extend(Stretch(0.0, 2.0, (Part("prefill", 2.0, steps=1),)))
    course.extend(Stretch(1.0, 4.0, (Part("wait_turn", 0.5, steps=1), Part("decode", 2.5, steps=1))))
    assert causes(course) == [("prefill", 2.0), ("wait_turn", 0.0), ("decode", 2.0)]
    assert course.until == 4.0


def test_first_word_of_an_engine_ends_the_way_to_it() -> None:
    course = Course(5.0)
    course.go_on(Stretch(6.0, 7.0, (Part("prefill", 1.0),)))
    course.go_on(Stretch(7.0, 8.0, (Part("decode", 1.0),)))
    assert causes(course) == [("handover", 1.0), ("prefill", 1.0), ("decode", 1.0)]


def test_what_is_taken_goes_on_elsewhere_without_a_gap() -> None:
    course, whole = Course(0.0), Course(0.0)
    for end, cause in enumerate(("wait_row", "prefill", "decode"), start=1):
        course.add(Part(cause, 0.0, steps=1), float(end))
        whole.extend(course.take())
    assert causes(whole) == [("wait_row", 1.0), ("prefill", 1.0), ("decode", 1.0)]
    assert course.take() == Stretch(3.0, 3.0, ())


def test_many_changes_are_told_cause_by_cause_and_still_add_up() -> None:
    course = Course(0.0)
    for end in range(1, 1001):
        course.add(Part(("prefill", "wait_budget")[end % 2], 0.0, steps=end % 2), float(end))
        assert len(course.parts) <= MAX_PARTS
    assert sum(part.seconds for part in course.parts) == pytest.approx(1000.0)
    assert sum(part.steps for part in course.parts) == 500
    assert course.parts[0].seconds > 100
