"""The questions: repeatable, of mixed lengths and kinds."""

from legato.bench.workload import make_questions


def test_questions_depend_on_the_seed_alone() -> None:
    assert make_questions(64, seed=0) == make_questions(64, seed=0)
    assert make_questions(64, seed=0) != make_questions(64, seed=1)


def test_fewer_questions_are_the_first_of_more() -> None:
    assert make_questions(4, seed=0) == make_questions(64, seed=0)[:4]


def test_some_answers_end_early_and_some_are_long_in_every_round() -> None:
    questions = make_questions(64, seed=0)
    assert len({len(question.split()) for question in questions}) > 8
    assert 8 < sum("long story" in question for question in questions) < 24
    assert 16 < sum("Answer with" in question for question in questions) < 48
