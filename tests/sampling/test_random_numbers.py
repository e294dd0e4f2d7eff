"""Random numbers that belong to (seed, position) and to nothing else."""

import numpy as np
import pytest

from legato.sampling import random_numbers
from legato.sampling.random_numbers import uniform


def test_the_numbers_never_change_between_versions() -> None:
    assert [uniform(0, 0), uniform(0, 1), uniform(7, 0)] == [
        0.8833108082136426,
        0.4315279970485101,
        0.5243459416779314,
    ]


def test_they_are_uniform_along_a_stream_and_across_streams() -> None:
    for numbers in ([uniform(3, i) for i in range(20_000)], [uniform(i, 3) for i in range(20_000)]):
        counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 149.4  # chi-square, 99 degrees, p = 0.001


def test_neighbours_are_not_correlated() -> None:
    streams = np.array([[uniform(seed, i) for i in range(2_000)] for seed in range(4)])
    shifted = np.concatenate([streams[:, :-1], streams[:, 1:]])

    off_diagonal = np.corrcoef(shifted) - np.eye(8)
    assert np.abs(off_diagonal).max() < 0.09  # four standard errors


def test_a_seed_is_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    assert uniform(0, 5) != uniform(1, 5)


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_the_ends_are_never_reached(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_numbers, "_mix", lambda _: bits)

    assert 0 < uniform(0, 0) < 1
