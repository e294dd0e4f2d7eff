"""Every family's logits against those of Hugging Face, in float32, and its bits against themselves."""

from collections.abc import Mapping, Sequence
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

PROMPT_LEN, DECODE_LEN = 60, 40  # the prompt is longer than any window
ALIKE_LEN = (
    58  # prompts of five more need another page for their answers: where there is none, one must yield
)
CUTS = [0, 37, PROMPT_LEN, *range(PROMPT_LEN + 1, PROMPT_LEN + DECODE_LEN + 1)]
TOKEN_IDS = np.random.default_rng(5).integers(3, VOCAB, PROMPT_LEN + DECODE_LEN).tolist()
SHORT_MODES: dict[str, dict[str, object]] = {
    "batched": {},
    "chunks of 7, pages of 4": {"long_prefill_token_threshold": 7, "block_size": 4},
    "preempted": {"num_pages": 7},
}
FULL_MODES: dict[str, dict[str, object]] = SHORT_MODES | {
    "static": {"batching": "static"},
    **{
        f"chunks of {chunk}, pages of {page}": {"long_prefill_token_threshold": chunk, "block_size": page}
        for chunk, page in [(1, 1), (3, 64), (16, 2), (33, 32), (64, 8)]
    },
    "three at once": {"max_num_seqs": 3},
    "one thread": {"threads": 1},
}


def logits_in_chunks(model: CompiledProgram, token_ids: list[int], cuts: Sequence[int]) -> np.ndarray:
    chunks = [Chunk(token_ids[start:end], start, range(48)) for start, end in pairwise(cuts)]
    return np.concatenate([model.forward(make_inputs(chunk)).copy() for chunk in chunks])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_hugging_faces_in_prefill_and_decode(name: str, tmp_path: Path) -> None:
    """The prompt in two chunks, then a token at a time; numpy, which is slow, takes these in fewer steps."""
    wanted = hf_logits(save(name, tmp_path), TOKEN_IDS)
    assert np.ptp(wanted, axis=0).max() > np.abs(wanted).max() / 4  # else little would be tested
    for backend, cuts in (("reference", [*CUTS[:8], CUTS[-1]]), ("cpu", CUTS)):
        found = logits_in_chunks(compile_model(tmp_path, backend), TOKEN_IDS, cuts)
        assert worst_difference(found, wanted) <= TOLERANCE, backend


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_hugging_faces_at_any_length_in_any_chunks(name: str, tmp_path: Path) -> None:
    theirs = save(name, tmp_path)
    config = theirs.config
    longest = min(
        300, getattr(config, "original_max_position_embeddings", 300), config.max_position_embeddings
    )
    ours = {backend: compile_model(tmp_path, backend) for backend in ("reference", "cpu")}
    for seed in range(6):
        random = np.random.default_rng(seed)
        length = int(random.integers(longest // 2, longest + 1))
        token_ids = random.integers(3, VOCAB, length).tolist()
        wanted = hf_logits(theirs, token_ids)
        cuts = sorted({0, length, *random.integers(1, length, random.integers(1, 40)).tolist()})
        for backend, model in ours.items():
            found = logits_in_chunks(model, token_ids, cuts)
            assert worst_difference(found, wanted) <= TOLERANCE, (backend, seed)


def assert_same_bits(name: str, folder: Path, modes: Mapping[str, dict[str, object]], seed: int) -> None:
    save(name, folder)
    config = read_model_config(folder)
    model = build_model(config)
    weights = load_weights(folder, model.program, model.tensors)
    ours: Model = config, {each: weight.float32() for each, weight in weights.items()}
    requests = [*seeded_requests(4, VOCAB, seed), *alike_requests(4, ALIKE_LEN, VOCAB, seed)]
    settings = {"backend": "cpu", "dtype": "bfloat16", "max_model_len": 120}
    alone = run_alone(ours, requests, **settings)
    for mode, changes in modes.items():
        found = run(build_engine(ours, **settings | changes), requests)
        same_bits(found, alone)
        if mode in SHORT_MODES:  # others have pages that no prefix fills, or room for all
            assert found.prefix_hits > 0
            assert (found.num_preemptions > 0) == (mode == "preempted")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_has_the_bits_that_it_has_alone(name: str, tmp_path: Path) -> None:
    assert_same_bits(name, tmp_path, SHORT_MODES, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_has_the_bits_that_it_has_alone_in_every_mode(name: str, seed: int, tmp_path: Path) -> None:
    assert_same_bits(name, tmp_path, FULL_MODES, seed)
