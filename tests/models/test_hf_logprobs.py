"""Our logprobs of prompts and answers against those of Hugging Face transformers, weights float32 in both."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from legato.core.config import EngineConfig
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import SamplingParams
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.llm import LLM
from tests.models.test_hf_parity import random_ids, save_tiny_llama

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-4
NUM_TOP = 5


def hf_logprobs(model: PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    """[num_tokens, vocab_size]: of what follows each token."""
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0].float()
    return torch.log_softmax(logits, dim=-1).numpy()


def assert_same_logprobs(ours: list[TokenLogprobs], theirs: np.ndarray, token_ids: list[int]) -> None:
    """token_ids  those that ours are of; theirs has a row for each"""
    assert len(ours) == len(theirs) == len(token_ids)
    for found, row, token_id in zip(ours, theirs, token_ids, strict=True):
        assert found.logprob == pytest.approx(row[token_id], abs=TOLERANCE)
        assert found.top_logprobs == pytest.approx(row[list(found.top_ids)], abs=TOLERANCE)
        assert found.top_logprobs == pytest.approx(np.sort(row)[: -NUM_TOP - 1 : -1], abs=TOLERANCE)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logprobs_are_hugging_faces(backend: str, tmp_path: Path) -> None:
    theirs = save_tiny_llama(tmp_path, num_kv_heads=2, is_tied=False)
    config = EngineConfig(model=str(tmp_path), backend=backend, dtype="float32", num_pages=64)
    params = SamplingParams(
        max_tokens=20, temperature=1, seed=1, ignore_eos=True, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP
    )
    with LLM(tmp_path, client=InprocClient(load_engine(config, lambda *_: None))) as llm:
        prompts = [random_ids(length, 300) for length in (1, 17, 200)]
        for prompt, answer in zip(prompts, llm.generate(prompts, params), strict=True):
            token_ids = prompt + answer.token_ids
            rows = hf_logprobs(theirs, token_ids)[:-1]
            assert_same_logprobs(answer.prompt_logprobs + answer.logprobs, rows, token_ids[1:])
