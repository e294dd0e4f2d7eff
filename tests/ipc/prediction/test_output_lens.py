"""Lengths of answers: what a request makes certain, what those before it tell, and what has passed them."""

import pytest

from legato.core.sampling_params import SamplingParams
from legato.ipc.prediction.output_lens import OUTLIVED, UNSEEN_LEN, Bounds, OutputLens


def learned(*output_lens: int, most: int = 1000) -> OutputLens:
    """Of answers that ended with so many tokens, of so many that they might have."""
    lens = OutputLens()
    for output_len in output_lens:
        lens.learn(output_len, Bounds(0, most))
    return lens


@pytest.mark.parametrize(
    ("params", "bounds"),
    [
        (SamplingParams(max_tokens=200), (0, 200)),
        (SamplingParams(max_tokens=None), (0, 900)),
        (SamplingParams(max_tokens=200, min_tokens=30), (30, 200)),
        (SamplingParams(max_tokens=200, ignore_eos=True), (200, 200)),
        (SamplingParams(max_tokens=None, ignore_eos=True), (900, 900)),
        (SamplingParams(max_tokens=200, ignore_eos=True, stop="x"), (0, 200)),
        (SamplingParams(max_tokens=200, ignore_eos=True, stop_token_ids=(7,)), (0, 200)),
        (SamplingParams(max_tokens=0), (0, 1)),
    ],
)
def test_request_says_how_many_tokens_it_makes_at_least_and_at_most(
    params: SamplingParams, bounds: tuple[int, int]
) -> None:
    assert Bounds.of(params, room=900) == bounds


def test_length_that_is_certain_is_not_guessed() -> None:
    lens = learned(*[5] * 100)
    assert lens.left_len(Bounds(200, 200)) == 200
    assert lens.left_len(Bounds(200, 200), num_made=150) == 50
    assert lens.left_len(Bounds(30, 200)) == 30
    assert lens.left_len(Bounds(0, 200)) == 5


def test_request_that_has_passed_the_mean_is_not_about_to_end() -> None:
    lens = learned(*[20] * 200)
    assert lens.left_len(Bounds(0, 1000), num_made=5) == 15
    assert lens.left_len(Bounds(0, 1000), num_made=400) == 400 * (OUTLIVED - 1)
    assert lens.left_len(Bounds(0, 420), num_made=400) == 20
    assert lens.left_len(Bounds(0, 400), num_made=400) == 1


def test_before_an_answer_has_ended_they_are_taken_to_be_long() -> None:
    lens = OutputLens()
    assert lens.left_len(Bounds(0, 200)) == 200
    assert lens.left_len(Bounds(0, 8000)) == UNSEEN_LEN


def test_few_short_answers_do_not_make_all_short() -> None:
    assert learned(5).left_len(Bounds(0, 200)) > 100
    assert learned(*[5] * 3).left_len(Bounds(0, 200)) > 50
    assert learned(*[5] * 30).left_len(Bounds(0, 200)) < 10


def test_answers_that_were_cut_at_their_limit_tell_nothing_of_higher_limits() -> None:
    assert learned(*[5] * 50, most=5).left_len(Bounds(0, 200)) == 200
    half_cut = learned(*[10, 20] * 50, most=20)
    assert 20 < half_cut.left_len(Bounds(0, 200)) < 40


def test_answers_of_certain_length_tell_nothing_of_others() -> None:
    lens = learned(*[20] * 200)
    for _ in range(100):
        lens.learn(500, Bounds(500, 500))
    assert lens.left_len(Bounds(0, 1000)) == 20
