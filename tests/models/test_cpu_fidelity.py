"""What the cpu backend's number formats cost: next-token distributions against those of float32."""

from pathlib import Path

import numpy as np
import pytest

from legato.backends.backend import CompiledProgram, KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.core.config import DEFAULT_MODEL
from legato.kernels.library import NoKernels, open_device
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_program
from legato.tokenization.tokenizer import load_tokenizer
from legato.weights.loader import load_weights
from tests.backends.steps import Chunk, make_inputs

pytestmark = pytest.mark.model

PAGE_SIZE, CHUNK_LEN = 16, 250
TEXT = Path(__file__).parents[2] / "README.md"


def compile_default(*, is_quantized: bool, float_weights: str, kv_is_bf16: bool) -> CompiledProgram:
    path = resolve(DEFAULT_MODEL).path
    config = read_model_config(path)
    kv = KVLayout(config.num_layers, 128, PAGE_SIZE, config.num_kv_heads, config.head_dim)
    device = open_device()
    assert not isinstance(device, NoKernels)
    options = CpuOptions(float_weights, is_quantized, kv_is_bf16, CHUNK_LEN, CHUNK_LEN)
    return CpuBackend(device, options).compile(build_program(config), load_weights(path, config), kv)


def log_probabilities(model: CompiledProgram, token_ids: list[int]) -> np.ndarray:
    """Of every next token, [num_tokens, vocab] float32, a chunk at a time."""
    rows = []
    for start in range(0, len(token_ids), CHUNK_LEN):
        chunk = Chunk(token_ids[start : start + CHUNK_LEN], start, range(128))
        logits = model.forward(make_inputs(chunk)).copy()
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        rows.append(logits)
    return np.concatenate(rows)


def divergence_and_perplexities(
    found: np.ndarray, exact: np.ndarray, ids: list[int]
) -> tuple[float, float, float]:
    """Mean KL divergence of `found` from `exact`, and the text's perplexity under each."""
    divergence = float((np.exp(exact) * (exact - found)).sum(axis=-1).mean())
    places = np.arange(len(ids) - 1), np.array(ids[1:])
    return divergence, float(np.exp(-found[places].mean())), float(np.exp(-exact[places].mean()))


@pytest.mark.parametrize("num_tokens", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("is_quantized", "limit"),
    [(False, 0.005), (True, 0.01)],
    ids=["bfloat16", "4-bit weights, 8-bit activations"],
)
def test_distributions_stay_close_to_float32(num_tokens: int, is_quantized: bool, limit: float) -> None:
    tokenizer = load_tokenizer(resolve(DEFAULT_MODEL).path)
    assert tokenizer is not None
    ids = tokenizer.encode(TEXT.read_text())[:num_tokens]
    assert len(ids) == num_tokens
    exact = log_probabilities(compile_default(is_quantized=False, float_weights="f32", kv_is_bf16=False), ids)
    found = log_probabilities(
        compile_default(is_quantized=is_quantized, float_weights="bf16", kv_is_bf16=True), ids
    )
    divergence, perplexity, exact_perplexity = divergence_and_perplexities(found, exact, ids)
    assert divergence <= limit
    assert perplexity == pytest.approx(exact_perplexity, rel=0.01 if num_tokens == 2000 else 0.02)
