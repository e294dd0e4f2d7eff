"""The token pool from step to step, and a request whose logits are no numbers."""

import numpy as np
import pytest

import legato.sampling.row_sampler as row_sampler
from legato.backends.backend import CompiledProgram, ForwardInputs, KVLayout
from legato.backends.reference import ReferenceBackend
from legato.core.plan import StepOutput, StepPlan
from legato.core.sampling_params import SamplingParams
from legato.executor.forward_batch import BatchBuilder
from legato.executor.model_runner import ModelRunner
from legato.models.registry import build_program
from legato.sampling.row_sampler import ReferenceSampler
from tests.executor.plans import GREEDY, make_chunk, make_plan
from tests.fakes import random_model

VOCAB_SIZE = 32
PAGE_SIZE = 4


class SuccessorProgram:
    """Implements CompiledProgram: the most probable token after `i` is `i + 1`; records what it was given."""

    def __init__(self) -> None:
        self.token_ids: list[list[int]] = []

    def forward(self, inputs: ForwardInputs) -> np.ndarray:
        self.token_ids.append(inputs.token_ids.tolist())
        last = inputs.token_ids[inputs.sample_rows]
        return np.eye(VOCAB_SIZE, dtype=np.float32)[(last + 1) % VOCAB_SIZE]


class Rig:
    """A builder and a runner over one program."""

    def __init__(self, program: CompiledProgram) -> None:
        self.program = program
        self.builder = BatchBuilder(num_rows=3, max_pages=8)
        self.runner = ModelRunner(program, ReferenceSampler(), num_rows=3, max_model_len=32)

    def run(self, plan: StepPlan) -> StepOutput:
        return self.runner.run(self.builder.build(plan))


def test_sampled_token_is_read_by_the_next_step_through_the_pool() -> None:
    program = SuccessorProgram()
    rig = Rig(program)
    first = rig.builder.build(make_plan(make_chunk("a", 1, range(3), prompt=[4, 5, 6])))
    second = rig.builder.build(make_plan(make_chunk("a", 1, range(3, 4)), step=1))  # planned before any value
    assert rig.runner.run(first).token_ids == {"a": 7}
    assert rig.runner.run(second) == StepOutput(1, {"a": 8}, {})
    assert program.token_ids == [[4, 5, 6], [7]]


def test_chunk_inside_the_prompt_samples_nothing() -> None:
    rig = Rig(SuccessorProgram())
    prompt = make_chunk("a", 0, range(2), samples=False, prompt=[4, 5, 6])
    assert rig.run(make_plan(prompt)).token_ids == {}
    assert rig.run(make_plan(make_chunk("a", 0, range(2, 3)))).token_ids == {"a": 7}


def test_row_is_reused_without_a_trace_of_its_last_request() -> None:
    program = SuccessorProgram()
    rig = Rig(program)
    rig.run(make_plan(make_chunk("old", 0, range(4), prompt=[20, 21, 22, 23])))
    once = SamplingParams(max_tokens=9, temperature=0, presence_penalty=2)
    rig.run(make_plan(make_chunk("new", 0, range(1), prompt=[3], params=once)))
    assert rig.run(make_plan(make_chunk("new", 0, range(1, 2)))).token_ids == {"new": 5}
    assert program.token_ids[1:] == [[3], [4]]


class FavouriteProgram:
    """Implements CompiledProgram: 5 is always the most probable token, 6 the next."""

    def forward(self, inputs: ForwardInputs) -> np.ndarray:
        logits = np.zeros((len(inputs.sample_rows), VOCAB_SIZE), np.float32)
        logits[:, [5, 6]] = [2, 1]
        return logits


def test_penalties_look_at_the_output_and_not_at_the_prompt() -> None:
    rig = Rig(FavouriteProgram())
    params = SamplingParams(max_tokens=9, temperature=0, presence_penalty=1.5)
    prompt = make_chunk("a", 0, range(2), prompt=[5, 5], params=params)
    assert rig.run(make_plan(prompt)).token_ids == {"a": 5}
    assert rig.run(make_plan(make_chunk("a", 0, range(2, 3)))).token_ids == {"a": 6}


def test_logprobs_are_given_for_the_requests_that_ask_and_are_blind_to_penalties() -> None:
    rig = Rig(FavouriteProgram())
    params = SamplingParams(max_tokens=9, temperature=0, logit_bias={6: 100}, logprobs=2)
    asking = make_chunk("asks", 0, range(1), prompt=[3], params=params)
    output = rig.run(make_plan(asking, make_chunk("does not", 1, range(1), pages=(1,), prompt=[3])))
    assert output.token_ids == {"asks": 6, "does not": 5}
    assert output.logprobs.keys() == {"asks"}
    log_sum = np.log(np.exp(2) + np.exp(1) + VOCAB_SIZE - 2)
    assert output.logprobs["asks"].logprob == pytest.approx(1 - log_sum)
    assert output.logprobs["asks"].top_ids == (5, 6)
    assert output.logprobs["asks"].top_logprobs == pytest.approx((2 - log_sum, 1 - log_sum))


def test_prompt_tokens_are_scored_beside_those_that_sample() -> None:
    rig = Rig(SuccessorProgram())
    params = SamplingParams(max_tokens=9, temperature=0, prompt_logprobs=1)
    output = rig.run(
        make_plan(
            make_chunk("a", 0, range(3), prompt=[4, 5, 9], params=params, scored=range(2)),
            make_chunk("b", 1, range(2), pages=(1,), prompt=[7, 8]),
            make_chunk(
                "c", 2, range(2), samples=False, prompt=[1, 2], params=params, scored=range(1), completes=True
            ),
        )
    )
    log_sum = np.log(np.e + VOCAB_SIZE - 1)
    assert output.token_ids == {"a": 10, "b": 9}
    assert output.completed == ("c",)
    assert {each: len(found) for each, found in output.prompt_logprobs.items()} == {"a": 2, "c": 1}
    likely, unlikely = output.prompt_logprobs["a"]
    assert (likely.logprob, unlikely.logprob) == (pytest.approx(1 - log_sum), pytest.approx(-log_sum))
    assert (likely.top_ids, unlikely.top_ids) == ((5,), (6,))
    assert output.prompt_logprobs["c"][0].logprob == likely.logprob


@pytest.fixture(scope="module")
def model():
    return random_model(seed=5, num_layers=1, vocab_size=64)


def reference_rig(model, damaged_row: int | None = None) -> Rig:
    config, weights = model
    if damaged_row is not None:
        weights = weights | {"embed_tokens": weights["embed_tokens"].copy()}
        weights["embed_tokens"][damaged_row] = np.nan
    layout = KVLayout.of(build_program(config), 8, PAGE_SIZE)
    return Rig(ReferenceBackend().compile(build_program(config), weights, layout))


def two_requests(rig: Rig, bad_token: int) -> tuple[StepOutput, np.ndarray]:
    plan = make_plan(
        make_chunk("damaged", 0, range(2), pages=(0,), prompt=[bad_token, 3]),
        make_chunk("neighbour", 1, range(3), pages=(1,), prompt=[7, 8, 9]),
    )
    output = rig.run(plan)
    logits = rig.program.forward(
        ForwardInputs(
            token_ids=np.array([9], np.int32),
            positions=np.array([2], np.int32),
            query_starts=np.array([0, 1], np.int32),
            kv_lens=np.array([3], np.int32),
            page_table=np.array([[1]], np.int32),
            sample_rows=np.array([0], np.int32),
        )
    )
    return output, logits


def test_non_finite_logits_end_one_request_and_leave_its_neighbour_its_bits(model) -> None:
    expected, expected_logits = two_requests(reference_rig(model), bad_token=50)
    found, logits = two_requests(reference_rig(model, damaged_row=50), bad_token=50)
    assert found.token_ids == {"neighbour": expected.token_ids["neighbour"]}
    assert found.errors.keys() == {"damaged"}
    assert "not finite" in found.errors["damaged"].message
    assert expected.errors == {}
    assert logits.tobytes() == expected_logits.tobytes()


def test_non_finite_logits_inside_a_scored_prompt_end_that_request_alone(model) -> None:
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=2)
    plan = make_plan(
        make_chunk("damaged", 0, range(2), pages=(0,), prompt=[50, 3], params=params, scored=range(1)),
        make_chunk("neighbour", 1, range(3), pages=(1,), prompt=[7, 8, 9], params=params, scored=range(2)),
    )
    expected, found = reference_rig(model).run(plan), reference_rig(model, damaged_row=50).run(plan)
    assert found.errors.keys() == {"damaged"}
    assert "not finite" in found.errors["damaged"].message
    assert found.prompt_logprobs == {"neighbour": expected.prompt_logprobs["neighbour"]}
    assert found.token_ids == {"neighbour": expected.token_ids["neighbour"]}


def test_warming_changes_no_answer(model) -> None:
    plan = make_plan(make_chunk("a", 0, range(3), pages=(0,), prompt=[7, 8, 9], params=GREEDY))
    cold, warm = reference_rig(model), reference_rig(model)
    warm.runner.warm()
    assert warm.run(plan) == cold.run(plan)


def test_fault_of_ours_at_one_row_ends_that_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sample_badly(logits: np.ndarray, *, seed: int, **rest: object) -> int:
        if rest["prompt_ids"].tolist() == [4]:  # type: ignore[attr-defined]
            raise ValueError("zero-size array")
        return sample(logits, seed=seed, **rest)  # type: ignore[arg-type]

    sample = row_sampler.sample
    monkeypatch.setattr(row_sampler, "sample", sample_badly)
    rig = Rig(FavouriteProgram())
    output = rig.run(
        make_plan(
            make_chunk("bad", 0, range(1), pages=(0,), prompt=[4]),
            make_chunk("good", 1, range(1), pages=(1,), prompt=[7]),
        )
    )
    assert output.token_ids == {"good": 5}
    assert output.errors.keys() == {"bad"}
    assert "zero-size array" in caplog.text
