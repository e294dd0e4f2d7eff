"""The shipped core and bookkeeping in random worlds: nothing goes wrong."""

import pytest

from legato.sim.fake_model import expected_output
from legato.sim.scenario import Arrive, Ask, Event, Kill, Scenario, Setup, random_scenario
from legato.sim.world import simulate


@pytest.mark.parametrize("first_seed", range(0, 1000, 500))
def test_nothing_goes_wrong_in_small_worlds(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        simulate(random_scenario(seed, max_events=6))


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, 50_000, 5_000))
def test_nothing_goes_wrong_in_many_worlds(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 5_000):
        simulate(random_scenario(seed))


def test_same_seed_is_the_same_world_step_for_step() -> None:
    assert random_scenario(5) == random_scenario(5) != random_scenario(6)
    assert simulate(random_scenario(5)) == simulate(random_scenario(5))


def test_poison_ends_alone() -> None:
    asks = tuple(Ask(f"r{i}", (100 + i, 101), 6, is_poison=i == 2) for i in range(4))
    setup = random_scenario(0).setup
    simulate(Scenario(setup, (Event(0, Arrive(asks)), Event(1, Kill()))))


def test_innocent_suspects_pause_for_a_step_each_and_not_for_anothers_answer() -> None:
    num_tokens = 20
    asks = tuple(Ask(f"r{i}", (100 + i, 101), num_tokens, seed=20, is_poison=i == 1) for i in range(4))
    assert all(len(expected_output(ask.prompt, num_tokens, ask.seed)) == num_tokens for ask in asks)
    setup = Setup(
        max_num_seqs=4,
        max_step_tokens=64,
        mixed_prefill_tokens=64,
        long_prefill_tokens=None,
        max_step_scores=64,
        max_preemptions=1,
        max_queued=8,
        num_pages=64,
        page_size=4,
        enable_prefix_caching=True,
        batching="continuous",
        lookahead=0,
    )
    num_deadly, num_alone = 3, 3
    num_steps = simulate(Scenario(setup, (Event(0, Arrive(asks)),)))
    assert num_steps <= num_deadly + num_alone + num_tokens + 1


def test_prompts_may_end_one_after_another_while_others_wait_to_decode() -> None:
    setup = Setup(
        max_num_seqs=6,
        max_step_tokens=64,
        mixed_prefill_tokens=64,
        long_prefill_tokens=1,
        max_step_scores=2,
        max_preemptions=1,
        max_queued=8,
        num_pages=32,
        page_size=2,
        enable_prefix_caching=False,
        batching="prefill-first",
        lookahead=0,
    )
    asks = tuple(Ask(f"r{i}", (100,) * i, 2) for i in range(1, 7))
    simulate(Scenario(setup, (Event(0, Arrive(asks)),)))
