"""Every family's logits against those of Hugging Face, in float32, and its bits against themselves."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from legato.backends.backend import CompiledProgram
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.weights.loader import load_weights
from tests.backends.steps import Chunk, make_inputs
from tests.engine.runs import Model, alike_requests, build_engine, run, run_alone, same_bits, seeded_requests
from tests.models.families import FAMILIES, VOCAB, save
from tests.models.test_hf_parity import TOLERANCE, compile_model, hf_logits, worst_difference

pytestmark = pytest.mark.oracle

PROMPT_LEN, DECODE_LEN = 90, 40  # the prompt is longer than any window
CUTS = [0, 37, PROMPT_LEN, *range(PROMPT_LEN + 1, PROMPT_LEN + DECODE_LEN + 1)]
TOKEN_IDS = np.random.default_rng(5).integers(3, VOCAB, PROMPT_LEN + DECODE_LEN).tolist()
SHORT_MODES = {
    "batched": {},
    "chunks of 7, pages of 4": {"long_prefill_token_threshold": 7, "block_size": 4},
    "preempted": {"num_pages": 9},
}


def logits_in_chunks(model: CompiledProgram) -> np.ndarray:
    """Of the prompt in two chunks, then of a token at a time."""
    chunks = [Chunk(TOKEN_IDS[start:end], start, range(48)) for start, end in pairwise(CUTS)]
    return np.concatenate([model.forward(make_inputs(chunk)).copy() for chunk in chunks])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_hugging_faces_in_prefill_and_decode(name: str, tmp_path: Path) -> None:
    wanted = hf_logits(save(name, tmp_path), TOKEN_IDS)
    assert np.ptp(wanted, axis=0).max() > np.abs(wanted).max() / 4  # else little would be tested
    for backend in ("reference", "cpu"):
        found = logits_in_chunks(compile_model(tmp_path, backend))
        assert worst_difference(found, wanted) <= TOLERANCE, backend


@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_has_the_bits_that_it_has_alone(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    config = read_model_config(tmp_path)
    model = build_model(config)
    weights = load_weights(tmp_path, model.program, model.tensors)
    ours: Model = config, {each: weight.float32() for each, weight in weights.items()}
    requests = [*seeded_requests(4, VOCAB), *alike_requests(4, PROMPT_LEN, VOCAB)]
    settings = {"backend": "cpu", "dtype": "bfloat16", "max_model_len": 150}
    alone = run_alone(ours, requests, **settings)
    for mode, changes in SHORT_MODES.items():
        found = run(build_engine(ours, **settings | changes), requests)
        same_bits(found, alone)
        assert found.prefix_hits > 0
        assert (found.num_preemptions > 0) == (mode == "preempted")
