"""The shipped scheduler under random scenarios: everyone ends once, with the right tokens."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from legato.sim.fake_model import EOS
from tests.scheduler.driver import Driver, expected_output, expected_scores, make_request, make_scheduler


def simulate(seed: int) -> None:
    """One scenario, a pure function of its seed."""
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 4])
    num_pages = rng.randint(4, 40)
    scheduler = make_scheduler(
        max_num_seqs=rng.randint(1, 6),
        max_step_tokens=rng.choice([1, 2, 5, 16, 64]),
        mixed_prefill_tokens=rng.choice([None, 1, 4]),
        long_prefill_tokens=rng.choice([None, 1, 3]),
        num_pages=num_pages,
        page_size=page_size,
        batching=rng.choice(["continuous", "prefill-first", "static"]),
        enable_prefix_caching=rng.random() < 0.7,
        max_preemptions=rng.randint(0, 3),
        max_step_scores=rng.choice([1, 2, 7, 64]),
    )
    driver = Driver(scheduler, lookahead=rng.randint(0, 1))
    prefixes = [[100 + rng.randrange(4) for _ in range(rng.randint(0, 12))] for _ in range(3)]
    capacity = num_pages * page_size
    requests, aborted = [], set()
    for number in range(rng.randint(1, 20)):
        prompt = (rng.choice(prefixes) + [100 + rng.randrange(3) for _ in range(rng.randint(1, 8))])[
            -capacity:
        ]
        max_tokens = rng.randint(0, max(1, min(12, capacity + 1 - len(prompt))))
        request = make_request(
            f"r{number}",
            prompt,
            max_tokens,
            is_scored=rng.random() < 0.3,
            priority=rng.choice([0, 0, 0, 1, -1]),
        )
        request.ending_ids = frozenset({EOS})
        requests.append(request)
        scheduler.add(request)
        for _ in range(rng.choice([0, 0, 1, 3])):
            driver.step()
        if rng.random() < 0.15:
            victim = rng.choice(requests).request_id
            if victim not in driver.finished:
                scheduler.abort(victim)
                aborted.add(victim)
    driver.run()
    for request in requests:
        output = driver.tokens.get(request.request_id, [])
        expected = expected_output(request)
        if request.request_id in aborted:
            assert output == expected[: len(output)]
        else:
            assert output == expected, f"seed {seed}: {request}"
            assert driver.scores.get(request.request_id, []) == expected_scores(request), f"seed {seed}"
            assert request.request_id in driver.finished


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_random_scenarios(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        simulate(seed)


@pytest.mark.slow
def test_many_random_scenarios() -> None:
    for seed in range(1_000, 6_000):
        simulate(seed)


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and aborts in any order; after each, rows, pages and requests add up."""

    @initialize(
        batching=st.sampled_from(["continuous", "prefill-first", "static"]),
        lookahead=st.integers(0, 1),
        num_pages=st.integers(3, 12),
        budget=st.integers(1, 12),
    )
    def begin(self, batching: str, lookahead: int, num_pages: int, budget: int) -> None:
        self.capacity = num_pages * 2
        self.driver = Driver(
            make_scheduler(
                batching=batching,
                num_pages=num_pages,
                page_size=2,
                max_step_tokens=budget,
                max_num_seqs=3,
                max_step_scores=2,
            ),
            lookahead,
        )
        self.requests = {}

    @rule(
        prompt=st.lists(st.integers(100, 102), min_size=1, max_size=7),
        max_tokens=st.integers(0, 6),
        is_scored=st.booleans(),
    )
    def arrive(self, prompt: list[int], max_tokens: int, is_scored: bool) -> None:
        max_tokens = min(max_tokens, self.capacity + 1 - len(prompt))
        if max_tokens < 0 or len(prompt) > self.capacity:
            return
        request = make_request(f"r{len(self.requests)}", prompt, max_tokens, is_scored=is_scored)
        request.ending_ids = frozenset({EOS})
        self.requests[request.request_id] = request
        self.driver.scheduler.add(request)

    @rule()
    def step(self) -> None:
        self.driver.step()

    @precondition(lambda self: self.requests)
    @rule(choice=st.randoms(use_true_random=False))
    def abort(self, choice: random.Random) -> None:
        self.driver.scheduler.abort(choice.choice(sorted(self.requests)))

    @invariant()
    def tokens_are_right_so_far(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.scheduler.check_integrity()
        for request_id, output in self.driver.tokens.items():
            assert output == expected_output(self.requests[request_id])[: len(output)]
        for request_id, scores in self.driver.scores.items():
            assert scores == expected_scores(self.requests[request_id])

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.run()
            assert self.driver.scheduler.kv.usage().held == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
