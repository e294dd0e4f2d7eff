"""Predictions against what comes true, on the shipped scheduler over a device with a clock of its own."""

import random
from itertools import count
from typing import Any

import pytest

from legato.core.sampling_params import FinishReason, SamplingParams
from legato.ipc.messages import AddRequest, EngineStats, Failed, TokenOutput
from legato.ipc.prediction.first_token import FirstTokenPredictor
from tests.ipc.prediction.timed_engine import READY, Ask, Outcome, TimedEngine


def prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 1000) for _ in range(length))


def serve_streams(
    num_streams: int, num_requests: int, *, prefix_len: int = 0, longest: int = 400, **engine_options: Any
) -> list[Outcome]:
    """So many clients, each of which asks again a moment after its answer has ended."""
    rng, numbers = random.Random(7), count()
    engine = TimedEngine(**engine_options)
    prefix = prompt(rng, prefix_len)

    def ask(at: float) -> None:
        if next(numbers) < num_requests:
            max_tokens = rng.randrange(8, 64)
            asked = Ask(prefix + prompt(rng, rng.randrange(5, longest)), max_tokens, rng.randrange(1, 100))
            engine.ask(at, asked)

    engine.on_end = lambda: ask(engine.now + rng.expovariate(4))
    for _ in range(num_streams):
        ask(rng.random())
    engine.run()
    return engine.outcomes


def share_within(outcomes: list[Outcome], factor: float) -> float:
    """Of those with a prediction, the share whose first token came within `factor` of it, either way."""
    ratios = [each.real_s / each.predicted.wait_s for each in outcomes if each.predicted and each.real_s]
    assert len(ratios) > 0.8 * len(outcomes)
    return sum(1 / factor <= ratio <= factor for ratio in ratios) / len(ratios)


@pytest.mark.parametrize("num_streams", [1, 8, 64])
def test_most_first_tokens_come_as_predicted(num_streams: int) -> None:
    assert share_within(serve_streams(num_streams, 60), 1.5) > 0.8


def test_wait_for_a_row_is_predicted() -> None:
    assert share_within(serve_streams(32, 90, max_num_seqs=8), 1.5) > 0.8


def test_what_the_prefix_cache_has_is_not_waited_for() -> None:
    outcomes = serve_streams(4, 40, prefix_len=2000, longest=50)
    assert share_within(outcomes[4:], 2) > 0.8


def test_prediction_for_prefill_first_is_of_its_own_steps() -> None:
    assert share_within(serve_streams(16, 60, batching="prefill-first"), 2) > 0.8


def test_static_rounds_are_not_predicted() -> None:
    assert {each.predicted for each in serve_streams(4, 12, batching="static", max_num_seqs=4)} == {None}


def make_predictor() -> FirstTokenPredictor:
    """Of an engine that has shown its speed: 1 s a step and 10 ms a token."""
    predictor = FirstTokenPredictor()
    predictor.begin(READY)
    predictor.take_stats(EngineStats(tokens=100, busy_s=2.0, step=1))
    predictor.take_stats(EngineStats(tokens=101, busy_s=3.01, step=2))
    return predictor


def request(
    name: str, prompt_len: int, max_tokens: int = 8, tenant: str = "", *, ignore_eos: bool = False
) -> AddRequest:
    return AddRequest(
        request_id=name,
        token_ids=list(prompt(random.Random(name), prompt_len)),
        params=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
        seed=0,
        tenant=tenant,
    )


def wait_s(predictor: FirstTokenPredictor, prompt_len: int = 50) -> float:
    predicted = predictor.predict(prompt(random.Random(99), prompt_len))
    assert predicted is not None
    return predicted.wait_s


def test_nothing_is_predicted_before_a_step_was_measured() -> None:
    predictor = FirstTokenPredictor()
    predictor.begin(READY)
    assert predictor.predict([1, 2, 3]) is None


def test_prompt_alone_waits_for_itself() -> None:
    predicted = make_predictor().predict(prompt(random.Random(1), 50))
    assert predicted is not None
    assert predicted.wait_s == predicted.alone_s == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("end", ["abort", "failure", "last token"])
def test_request_that_has_ended_is_waited_for_no_more(end: str) -> None:
    predictor = make_predictor()
    idle_s = wait_s(predictor)
    predictor.add([request("a", 3000)])
    assert wait_s(predictor) > 2 * idle_s
    if end == "last token":
        predictor.take_token(TokenOutput(request_id="a", index=0, token_ids=[5]))
        predictor.take_token(TokenOutput(request_id="a", index=1, token_ids=[5], finish_reason="stop"))  # type: ignore[arg-type]
    else:
        predictor.forget("a")
    assert wait_s(predictor) == idle_s


def test_what_is_computed_of_a_prompt_is_waited_for_no_more() -> None:
    predictor = make_predictor()
    predictor.add([request("a", 4000), request("b", 4000)])
    before_s = wait_s(predictor, 1000)
    predictor.take_stats(EngineStats(step=2, tokens=101, busy_s=3.01, prefilled_tokens=6000))
    assert wait_s(predictor, 1000) < 0.5 * before_s


def test_answers_to_one_prompt_are_its_work_once() -> None:
    predictor, single = make_predictor(), make_predictor()
    token_ids = request("a", 4000).token_ids
    params = SamplingParams(max_tokens=8)
    answers = [AddRequest(request_id=name, token_ids=token_ids, params=params, seed=0) for name in "abcdef"]
    single.add(answers[:1])
    predictor.add(answers)
    assert wait_s(predictor) < 1.5 * wait_s(single)


def test_light_tenant_waits_for_little_of_what_a_heavy_one_asks_for() -> None:
    predictor = make_predictor()
    predictor.add([request(f"h{number}", 500, tenant="heavy") for number in range(100)])
    light = predictor.predict(prompt(random.Random(1), 50), tenant="light")
    heavy = predictor.predict(prompt(random.Random(1), 50), tenant="heavy")
    assert light is not None
    assert heavy is not None
    assert light.wait_s < 0.1 * heavy.wait_s


def test_light_tenant_waits_for_no_row_that_a_heavy_one_must_leave() -> None:
    predictor = make_predictor()
    for number in range(READY.scheduler.max_num_seqs):
        predictor.add([request(f"h{number}", 4, 1000, tenant="heavy")])
        predictor.take_token(TokenOutput(request_id=f"h{number}", index=0, token_ids=[5]))
    light = predictor.predict(prompt(random.Random(1), 50), tenant="light")
    heavy = predictor.predict(prompt(random.Random(1), 50), tenant="heavy")
    assert light is not None
    assert heavy is not None
    assert light.wait_s < 0.1 * heavy.wait_s


def test_mean_length_of_answers_is_learned_from_those_that_ended() -> None:
    """Rows are taken by requests that may make 1000 tokens and are known to make some 10."""
    waits = {}
    for output_len in (10, 1000):
        predictor = make_predictor()
        for number in range(200):
            name = f"e{number}"
            predictor.add([request(name, 4, 1000)])
            predictor.take_token(
                TokenOutput(request_id=name, index=output_len - 1, token_ids=[5], finish_reason="stop")  # type: ignore[arg-type]
            )
        for number in range(READY.scheduler.max_num_seqs):
            predictor.add([request(f"r{number}", 4, 1000)])
            predictor.take_token(TokenOutput(request_id=f"r{number}", index=0, token_ids=[5]))
        waits[output_len] = wait_s(predictor)
    assert waits[10] < 0.1 * waits[1000]


def test_other_engine_begins_with_nothing_decoding_and_what_waits_still_waits() -> None:
    predictor = make_predictor()
    predictor.add([request("a", 3000), request("b", 3000)])
    predictor.take_token(TokenOutput(request_id="a", index=0, token_ids=[5]))
    predictor.begin(READY)
    assert wait_s(predictor) > 2 * wait_s(make_predictor())
    predictor.forget("a")
    predictor.forget("b")
    assert wait_s(predictor) == wait_s(make_predictor())


def test_failed_request_is_forgotten_by_the_router() -> None:
    engine = TimedEngine()
    engine.router.expect([request("a", 10)], lambda reply: None)
    engine.router.route(Failed(request_id="a", error="it broke"))
    assert engine.router.num_pending == 0


def fill_rows(predictor: FirstTokenPredictor, max_tokens: int, *, ignore_eos: bool = False) -> None:
    """With requests that have their first token."""
    for number in range(READY.scheduler.max_num_seqs):
        predictor.add([request(f"r{number}", 4, max_tokens, ignore_eos=ignore_eos)])
        predictor.take_token(TokenOutput(request_id=f"r{number}", index=0, token_ids=[5]))


def test_answers_that_ignore_their_end_are_waited_for_whole_after_short_ones() -> None:
    predictor = make_predictor()
    for number in range(100):
        predictor.add([request(f"e{number}", 4, 1000)])
        last = TokenOutput(request_id=f"e{number}", index=4, token_ids=[5], finish_reason=FinishReason.STOP)
        predictor.take_token(last)
    fill_rows(predictor, 200, ignore_eos=True)
    assert wait_s(predictor) > 199 * 1.5  # steps of 1.64 s
    predictor.take_token(TokenOutput(request_id="r0", index=149, token_ids=[5]))
    assert 50 < wait_s(predictor) < 100


def test_row_is_waited_for_before_an_answer_has_ended() -> None:
    predictor = FirstTokenPredictor()
    predictor.begin(READY)
    predictor.take_stats(EngineStats(tokens=1, busy_s=1.0, step=1))  # of the first step ever
    fill_rows(predictor, 200)
    assert wait_s(predictor) > 199


def test_who_is_refused_is_told_when_a_prompt_would_not_wait_too_long() -> None:
    predictor = make_predictor()
    predictor.add([request("a", 8000)])  # whose steps a short prompt shares, each as long as the others
    token_ids = prompt(random.Random(99), 50)
    whole_s = wait_s(predictor, 8000) - wait_s(make_predictor(), 8000)
    told = predictor.predict(token_ids, limit_s=2.0)
    assert told is not None
    assert told.wait_s - 2.0 < 0.5 * whole_s, "what is too much of the wait is less than it takes to be so"
    assert told.retry_s > 0.5 * whole_s

    fits = predictor.predict(token_ids, limit_s=told.wait_s)
    assert fits is not None
    assert fits.retry_s == 0


def test_requests_that_another_engine_had_begun_hold_their_rows_again() -> None:
    """Each waits until its prompt and its tokens are computed, and then until it ends."""
    predictor = make_predictor()
    fill_rows(predictor, 200, ignore_eos=True)
    before_s = wait_s(predictor)
    predictor.begin(READY)
    assert wait_s(predictor) > 0.9 * before_s
    for number in range(READY.scheduler.max_num_seqs):
        predictor.take_token(TokenOutput(request_id=f"r{number}", index=1, token_ids=[5]))
    assert wait_s(predictor) == pytest.approx(before_s, rel=0.02)
    predictor.begin(READY)
    for number in range(READY.scheduler.max_num_seqs):
        predictor.forget(f"r{number}")
    assert wait_s(predictor) == wait_s(make_predictor())
