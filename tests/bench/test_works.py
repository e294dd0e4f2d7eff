"""The works: repeatable, fresh in each repetition, of the lengths that their names promise."""

import pytest

from legato.bench.works import WORKS, Work, WorkRequest


def requests(work: Work, repetition: int = 0, seed: int = 0, vocab_size: int = 40_000) -> list[WorkRequest]:
    return work.requests(repetition, seed=seed, vocab_size=vocab_size)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_prompts_depend_on_seed_and_repetition_alone(work: Work) -> None:
    assert requests(work, 1, seed=5) == requests(work, 1, seed=5)
    seen = [requests(work, 0), requests(work, 1), requests(work, 0, seed=1)]
    assert len({tuple(each.token_ids) for some in seen for each in some}) == 3 * len(seen[0])


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_repetitions_have_the_same_lengths(work: Work) -> None:
    lengths = [
        [(len(each.token_ids), each.max_tokens) for each in requests(work, repetition)]
        for repetition in (0, 1)
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("name", "num", "prompt_lens", "max_tokens"),
    [
        ("W1_1", 1, (5, 8), (50, 50)),
        ("W1_64", 64, (5, 8), (50, 50)),
        ("W2", 1, (32, 32), (256, 256)),
        ("W3", 1, (2000, 2000), (1, 1)),
        ("W4", 64, (32, 512), (16, 128)),
        ("W5", 32, (1056, 1056), (32, 32)),
    ],
)
def test_work_has_its_shape(
    name: str, num: int, prompt_lens: tuple[int, int], max_tokens: tuple[int, int]
) -> None:
    made = requests(WORKS[name])
    assert len(made) == num
    assert all(prompt_lens[0] <= len(each.token_ids) <= prompt_lens[1] for each in made)
    assert all(max_tokens[0] <= each.max_tokens <= max_tokens[1] for each in made)


def test_shared_prefix_is_new_in_each_repetition() -> None:
    first, second = ({tuple(each.token_ids[:1024]) for each in requests(WORKS["W5"], i)} for i in (0, 1))
    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.parametrize("vocab_size", [40, 49_152])
def test_ids_are_in_the_vocabulary(vocab_size: int) -> None:
    ids = [token_id for each in requests(WORKS["W4"], vocab_size=vocab_size) for token_id in each.token_ids]
    assert 0 <= min(ids) < max(ids) < vocab_size
