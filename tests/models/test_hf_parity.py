"""Our logits against those of Hugging Face transformers, weights decoded to float32 in both."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from legato.backends.backend import CompiledProgram, KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.reference import ReferenceBackend
from legato.core.config import DEFAULT_MODEL
from legato.kernels.library import NoKernels, open_device
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.tokenization.tokenizer import load_tokenizer
from legato.weights.loader import load_weights
from tests.backends.steps import Chunk, make_inputs

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-4  # of the largest logit at the position
NUM_PAGES, PAGE_SIZE = 48, 16
GREEDY_STEPS = 40
FULL = pytest.mark.slow  # numpy computes the default model's tokens one or two a second


def compile_model(path: Path, backend: str) -> CompiledProgram:
    """The model as it lies there, computed in float32, and K/V in float32 too."""
    model = build_model(read_model_config(path))
    program = model.program
    kv = KVLayout.of(program, NUM_PAGES, PAGE_SIZE)
    weights = load_weights(path, program, model.tensors)
    if backend == "reference":
        return ReferenceBackend().compile(program, weights, kv)
    device = open_device()
    assert not isinstance(device, NoKernels)
    max_len = NUM_PAGES * PAGE_SIZE
    options = CpuOptions(float_weights="f32", is_quantized=False, max_tokens=max_len, max_samples=max_len)
    return CpuBackend(device, options).compile(program, weights, kv)


def our_logits(model: CompiledProgram, token_ids: list[int], start: int = 0) -> np.ndarray:
    """Logits of positions from `start` on; those before must have been computed already."""
    return model.forward(make_inputs(Chunk(token_ids[start:], start, range(NUM_PAGES))))


def hf_logits(model: PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].float().numpy()


def random_ids(num_tokens: int, vocab_size: int) -> list[int]:
    return np.random.default_rng(num_tokens).integers(0, vocab_size, num_tokens).tolist()


def worst_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of a position, relative to the position's largest logit."""
    assert ours.shape == theirs.shape
    return float((np.abs(ours - theirs).max(axis=-1) / np.abs(theirs).max(axis=-1)).max())


def assert_same_greedy_text(
    ours: CompiledProgram, theirs: PreTrainedModel, prompt: list[int], num_steps: int = GREEDY_STEPS
) -> None:
    """Each token that we choose is theirs too after the same tokens, unless their two best are level."""
    token_ids, computed = list(prompt), 0
    while len(token_ids) < len(prompt) + num_steps:
        row = our_logits(ours, token_ids, computed)[-1]
        computed = len(token_ids)
        token_ids.append(int(row.argmax()))

    rows = hf_logits(theirs, token_ids[:-1])[len(prompt) - 1 :]
    second, best = np.sort(rows, axis=-1)[:, -2:].T
    is_clear = best - second > TOLERANCE * np.abs(rows).max(axis=-1)
    assert np.array(token_ids[len(prompt) :])[is_clear].tolist() == rows.argmax(axis=-1)[is_clear].tolist()
    assert is_clear.sum() > num_steps // 2


# the default model


@pytest.fixture(scope="module")
def default_path() -> Path:
    return resolve(DEFAULT_MODEL).path


@pytest.fixture(scope="module")
def default_ours(default_path: Path) -> Callable[[str], CompiledProgram]:
    """The model on a backend."""
    return cache(lambda backend: compile_model(default_path, backend))


@pytest.fixture(scope="module")
def default_theirs(default_path: Path, quick_gguf: None) -> PreTrainedModel:
    """What from_pretrained(gguf_file=...) does, which asks for a further package to do it."""
    config = AutoConfig.from_pretrained(str(default_path.parent), gguf_file=default_path.name)
    model = LlamaForCausalLM(config).eval()
    stored = load_gguf_checkpoint(str(default_path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(stored["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.mark.model
@pytest.mark.parametrize(
    ("backend", "num_tokens"),
    [
        ("reference", 1), ("reference", 9), pytest.param("reference", 600, marks=FULL),
        ("cpu", 1), ("cpu", 17), ("cpu", 300), pytest.param("cpu", 600, marks=FULL),
    ],
)  # fmt: skip
def test_default_models_logits_are_hugging_faces_at_every_position(
    backend: str,
    num_tokens: int,
    default_ours: Callable[[str], CompiledProgram],
    default_theirs: PreTrainedModel,
) -> None:
    ids = random_ids(num_tokens, 49_152)
    found = our_logits(default_ours(backend), ids)
    assert worst_difference(found, hf_logits(default_theirs, ids)) <= TOLERANCE


@pytest.mark.model
@pytest.mark.parametrize(
    ("backend", "num_steps"),
    [("reference", 4), pytest.param("reference", GREEDY_STEPS, marks=FULL), ("cpu", GREEDY_STEPS)],
)
def test_default_models_greedy_text_is_hugging_faces(
    backend: str,
    num_steps: int,
    default_path: Path,
    default_ours: Callable[[str], CompiledProgram],
    default_theirs: PreTrainedModel,
) -> None:
    tokenizer = load_tokenizer(default_path)
    assert tokenizer is not None

    prompt = tokenizer.encode("The three largest cities of France are")
    assert_same_greedy_text(default_ours(backend), default_theirs, prompt, num_steps)


# tiny checkpoints, written by transformers itself


def save_tiny_llama(path: Path, *, num_kv_heads: int, is_tied: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=num_kv_heads,
            vocab_size=300,
            max_position_embeddings=1024,
            initializer_range=0.3,  # the usual 0.02 leaves attention almost uniform: nothing would be tested
            tie_word_embeddings=is_tied,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        )
    ).eval()
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize(
    ("num_kv_heads", "is_tied", "lens"),
    [
        (6, True, (1, 200)), (1, False, (17,)),  # what families.py has, in other shapes
        *(pytest.param(heads, tied, (1, 17, 600), marks=FULL)
          for heads, tied in [(6, True), (2, False), (2, True), (1, False)]),
    ],
)  # fmt: skip
def test_a_tiny_checkpoints_logits_and_greedy_text_are_hugging_faces(
    num_kv_heads: int, is_tied: bool, lens: tuple[int, ...], tmp_path: Path
) -> None:
    theirs = save_tiny_llama(tmp_path, num_kv_heads=num_kv_heads, is_tied=is_tied)
    for backend in ("reference", "cpu"):
        ours = compile_model(tmp_path, backend)
        for num_tokens in lens:
            ids = random_ids(num_tokens, 300)
            assert worst_difference(our_logits(ours, ids), hf_logits(theirs, ids)) <= TOLERANCE, backend
        assert_same_greedy_text(ours, theirs, random_ids(17, 300))
