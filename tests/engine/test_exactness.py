"""The promise: alone == batched == chunked == cached == preempted == static == overlapped, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

import legato.backends.reference as reference
from legato.ipc.messages import AddRequest
from tests.engine.runs import (
    Model,
    Run,
    alike_requests,
    build_engine,
    run,
    run_alone,
    same_bits,
    seeded_requests,
)
from tests.fakes import random_model

NUM_SHORT, NUM_FULL = 40, 200

MODES = {
    "batched": {},
    "batched without overlap": {"overlap": False},
    "two rows": {"max_num_seqs": 2},
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 16": {"long_prefill_token_threshold": 16},
    "chunks of 64": {"long_prefill_token_threshold": 64},
    "whole prompts": {"long_prefill_token_threshold": 512},
    "small steps": {"max_num_batched_tokens": 7},
    "few tokens beside decodes": {"mixed_prefill_tokens": 3},
    "pages of 1": {"block_size": 1, "num_pages": 8192},
    "no prefix cache": {"enable_prefix_caching": False},
    "preempted": {"num_pages": 14},
    "preempted without overlap": {"num_pages": 14, "overlap": False},
    "preempted, pages of 1": {"num_pages": 200, "block_size": 1},
    "static": {"batching": "static"},
    "static without overlap": {"batching": "static", "overlap": False},
    "prefill first": {"batching": "prefill-first"},
}

ARRIVALS_AT_ONCE = {  # of requests with one prefix that nobody has seen: the steps that they share it in
    "one step": {},
    "without overlap": {"overlap": False},
    "chunks that end inside a page": {"max_num_batched_tokens": 60, "long_prefill_token_threshold": 23},
    "pages of 1": {"block_size": 1},
    "static": {"batching": "static", "max_num_seqs": 6},
    "preempted": {"num_pages": 8, "max_num_batched_tokens": 60},
}


class Reference:
    """The model, the requests, and what each gives alone."""

    def __init__(self, count: int) -> None:
        self.model: Model = random_model(seed=1)
        self.requests: list[AddRequest] = seeded_requests(count, vocab_size=2048)
        self.alone: Run = run_alone(self.model, self.requests)


@pytest.fixture(scope="module")
def short() -> Reference:
    return Reference(NUM_SHORT)


@pytest.fixture(scope="module")
def full() -> Reference:
    return Reference(NUM_FULL)


def check_mode(reference_run: Reference, mode: str) -> None:
    found = run(build_engine(reference_run.model, **MODES[mode]), reference_run.requests)
    same_bits(found, reference_run.alone)
    if "preempted" in mode:
        assert found.num_preemptions > 0
    if mode == "batched":
        assert found.prefix_hits > 0
    if "static" in mode:
        assert found.num_rounds >= len(reference_run.requests) // 4


@pytest.mark.parametrize("mode", MODES)
def test_a_request_has_the_bits_that_it_has_alone(short: Reference, mode: str) -> None:
    check_mode(short, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_two_hundred_requests_have_the_bits_that_they_have_alone(full: Reference, mode: str) -> None:
    check_mode(full, mode)


@pytest.mark.parametrize("mode", ARRIVALS_AT_ONCE)
def test_sharing_a_prefix_on_arrival_leaves_the_bits_alone(short: Reference, mode: str) -> None:
    requests = alike_requests(6, prefix_len=90, vocab_size=2048)
    found = run(build_engine(short.model, **ARRIVALS_AT_ONCE[mode]), requests, arrivals_per_step=6)
    same_bits(found, run_alone(short.model, requests))
    assert found.prefix_hits >= 5 * 64
    assert (found.num_preemptions > 0) == (mode == "preempted")
    if mode == "one step":
        assert found.prefix_hits == 5 * 80


def test_the_answers_are_worth_comparing(short: Reference) -> None:
    """Sampled and greedy answers vary, so that equality says something."""
    answers = {tuple(tokens) for tokens in short.alone.tokens.values()}
    assert len(answers) > NUM_SHORT // 2
    assert len(short.alone.tokens) == NUM_SHORT


def test_a_product_over_rows_is_found_out(short: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: one matrix product for all rows, as BLAS would like it."""

    def product_over_rows(x: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([x @ matrix.T for matrix in matrices], axis=1)

    monkeypatch.setattr(reference, "linear", product_over_rows)
    alone = run_alone(short.model, short.requests[:12])
    batched = run(build_engine(short.model), short.requests[:12])
    with pytest.raises(AssertionError, match="differ"):
        same_bits(replace(alone, logits=batched.logits), alone)


def test_a_token_is_the_same_whoever_its_neighbours_are(short: Reference) -> None:
    """One request among different neighbours, in different places of the batch."""
    chosen = short.requests[3]
    for neighbours in (short.requests[4:9], short.requests[20:35], []):
        found = run(build_engine(short.model), [*neighbours, chosen], arrivals_per_step=100)
        assert found.tokens[chosen.request_id] == short.alone.tokens[chosen.request_id]
