"""Logprobs of tokens and prompts have the bits that a request has alone, whatever its company and mode."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import legato.engine.assembly as assembly
from legato.core.config import EngineConfig, SchedulerConfig
from legato.ipc.messages import Accepted, AddRequest, Failed, TokenOutput
from legato.modelfiles.model_config import ModelConfig
from tests.engine.runs import Model, Run, build_engine, run, run_alone, same_bits, seeded_requests
from tests.fakes import random_model

BACKENDS = {"reference": {"backend": "reference"}, "cpu": {"backend": "cpu", "dtype": "bfloat16"}}
MODES = {
    "batched": {},
    "without overlap": {"overlap": False},
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "pages of 1": {"block_size": 1, "num_pages": 8192},
    "no prefix cache": {"enable_prefix_caching": False},
    "preempted": {"num_pages": 120, "block_size": 1, "max_num_batched_tokens": 20},
    "preempted without overlap": {
        "num_pages": 120,
        "block_size": 1,
        "max_num_batched_tokens": 20,
        "overlap": False,
    },
    "one row": {"max_num_seqs": 1},
    "static": {"batching": "static"},
    "prefill first": {"batching": "prefill-first"},
}
SHORT_MODES = ("batched", "chunks of 7", "preempted")  # of the slow backend
VOCAB_SIZE = 512


def requests_with_logprobs() -> list[AddRequest]:
    """Two of three are scored, the third may find in the cache what they left; some want no token."""
    requests = []
    for number, request in enumerate(seeded_requests(18, VOCAB_SIZE)):
        changes = {
            "logprobs": number % 4,
            "prompt_logprobs": (3, None, 0)[number % 3],
            "max_tokens": (0, 1, 28, 28)[number % 4],
            "min_tokens": 0,
            "ignore_eos": True,
        }
        requests.append(
            AddRequest(
                request_id=request.request_id,
                token_ids=request.token_ids,
                params=replace(request.params, **changes),
                seed=request.seed,
            )
        )
    return requests


@cache
def model() -> Model:
    return random_model(seed=2, num_layers=1, vocab_size=VOCAB_SIZE)


@cache
def alone(backend: str) -> Run:
    return run_alone(model(), requests_with_logprobs(), **BACKENDS[backend])


@pytest.fixture
def max_step_scores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = assembly.resolve_scheduling

    def changed(config: EngineConfig, max_model_len: int) -> SchedulerConfig:
        return replace(resolve(config, max_model_len), max_step_scores=request.param)

    monkeypatch.setattr(assembly, "resolve_scheduling", changed)


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        *(("cpu", mode) for mode in MODES),
        *(("reference", mode) for mode in SHORT_MODES),
        *(
            pytest.param("reference", mode, marks=pytest.mark.slow)
            for mode in MODES
            if mode not in SHORT_MODES
        ),
    ],
)
def test_logprobs_have_the_bits_that_they_have_alone(mode: str, backend: str) -> None:
    found = run(build_engine(model(), **BACKENDS[backend], **MODES[mode]), requests_with_logprobs())
    same_bits(found, alone(backend))
    assert (found.num_preemptions > 0) == ("preempted" in mode)
    if mode == "batched":
        assert found.prefix_hits > 0


@pytest.mark.parametrize(
    ("backend", "max_step_scores"),
    [
        *(("cpu", count) for count in (1, 7, 512)),
        ("reference", 7),
        *(pytest.param("reference", count, marks=pytest.mark.slow) for count in (1, 512)),
    ],
    indirect=["max_step_scores"],
)
@pytest.mark.usefixtures("max_step_scores")
def test_bits_do_not_depend_on_how_many_are_scored_in_a_step(backend: str) -> None:
    found = run(build_engine(model(), **BACKENDS[backend]), requests_with_logprobs())
    same_bits(found, alone(backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_request_has_the_logprobs_that_it_asks_for(backend: str) -> None:
    for request in requests_with_logprobs():
        params, result = request.params, alone(backend)
        tokens, logprobs = result.tokens[request.request_id], result.logprobs[request.request_id]
        scores = result.prompt_logprobs[request.request_id]
        assert len(tokens) == len(logprobs) <= params.max_tokens
        assert {len(each.top_ids) for each in logprobs} <= {params.logprobs}
        assert len(scores) == (0 if params.prompt_logprobs is None else len(request.token_ids) - 1)
        assert {len(each.top_ids) for each in scores} <= {params.prompt_logprobs}


@pytest.mark.parametrize("backend", BACKENDS)
def test_answer_read_again_as_a_prompt_has_the_bits_of_its_sampled_tokens(backend: str) -> None:
    first = replace(seeded_requests(1, VOCAB_SIZE)[0].params, max_tokens=12, logprobs=4, ignore_eos=True)
    prompt = list(range(40, 60))
    answer = run(
        build_engine(model(), **BACKENDS[backend]),
        [AddRequest(request_id="answer", token_ids=prompt, params=first, seed=3)],
    )
    again = run(
        build_engine(model(), **BACKENDS[backend]),
        [
            AddRequest(
                request_id="again",
                token_ids=prompt + answer.tokens["answer"],
                params=replace(first, max_tokens=0, min_tokens=0, prompt_logprobs=4),
                seed=4,
            )
        ],
    )
    assert again.prompt_logprobs["again"][len(prompt) - 1 :] == answer.logprobs["answer"]
    assert len(answer.logprobs["answer"]) == 12


@pytest.mark.parametrize("backend", BACKENDS)
def test_prompt_of_the_whole_context_is_scored(backend: str) -> None:
    prompt = [3 + n % 500 for n in range(96)]
    request = AddRequest(
        request_id="whole",
        token_ids=prompt,
        params=replace(requests_with_logprobs()[0].params, max_tokens=0, prompt_logprobs=0),
        seed=0,
    )
    engine = build_engine(model(), **BACKENDS[backend], max_model_len=96, num_pages=6)
    found = run(engine, [request])
    assert len(found.prompt_logprobs["whole"]) == 95
    assert found.tokens["whole"] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_damaged_logits_inside_a_scored_prompt_end_that_request_alone(backend: str) -> None:
    config, weights = model()
    damaged: tuple[ModelConfig, dict[str, np.ndarray]] = (
        config,
        weights | {"embed_tokens": weights["embed_tokens"].copy()},
    )
    damaged[1]["embed_tokens"][9] = np.nan
    params = replace(requests_with_logprobs()[0].params, max_tokens=0, prompt_logprobs=2)

    def outputs(built: Model, second_id: int) -> dict[str, TokenOutput | Failed]:
        engine = build_engine(built, **BACKENDS[backend], overlap=False)
        for request_id, ids in (("bad", [4, second_id, 6, 7]), ("good", [4, 5, 6, 7])):
            message = AddRequest(request_id=request_id, token_ids=ids, params=params, seed=0)
            assert isinstance(engine.core.add(message), Accepted)
        found = {}
        while engine.core.has_work:
            found |= {output.request_id: output for output in engine.core.step()}
        engine.core.check_integrity()
        engine.core.close()
        return found

    expected, found = outputs(model(), 9), outputs(damaged, 9)
    assert isinstance(found["bad"], Failed)
    assert found["bad"].code == "non_finite_logits"
    assert found["good"].prompt_logprobs == expected["good"].prompt_logprobs
    assert len(found["good"].prompt_logprobs) == 3
