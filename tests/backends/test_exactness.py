"""A request's logits are the same bits alone, in a batch, in chunks, on any pages."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from legato.backends import reference
from legato.backends.backend import KVLayout
from legato.backends.reference import (
    ReferenceBackend,
    ReferenceProgram,
    attend,
    gelu,
    layer_norm,
    linear,
    rms_norm,
    soft_cap,
)
from legato.models.registry import build_program
from tests.backends.steps import Chunk, make_inputs
from tests.fakes import random_model

CONFIG, WEIGHTS = random_model(0)
PROMPT_LENS = (1, 2, 3, 17, 40, 66)
PROMPTS = [np.random.default_rng(n).integers(0, CONFIG.vocab_size, n).tolist() for n in PROMPT_LENS]

Logits = list[np.ndarray]  # of each prompt: [prompt_len, vocab_size]


def compile_random_model(page_size: int) -> ReferenceProgram:
    kv = KVLayout.of(build_program(CONFIG), 160, page_size)
    return ReferenceBackend().compile(build_program(CONFIG), WEIGHTS, kv)


def take_pages(page_size: int) -> list[list[int]]:
    """Pages for each prompt, scattered over the store."""
    free = iter(np.random.default_rng(page_size).permutation(160).tolist())
    return [[next(free) for _ in range(-(-n // page_size))] for n in PROMPT_LENS]


def run_alone() -> Logits:
    compiled = compile_random_model(page_size=16)
    pages = take_pages(16)
    return [compiled.forward(make_inputs(Chunk(ids, 0, pages[i]))) for i, ids in enumerate(PROMPTS)]


def run_together(*, chunk_len: int, page_size: int) -> Logits:
    """All prompts in every step, each going on by chunk_len tokens until it is through."""
    compiled = compile_random_model(page_size)
    pages = take_pages(page_size)
    parts: list[Logits] = [[] for _ in PROMPTS]
    for start in range(0, max(PROMPT_LENS), chunk_len):
        running = [i for i, n in enumerate(PROMPT_LENS) if n > start]
        chunks = [Chunk(PROMPTS[i][start : start + chunk_len], start, pages[i]) for i in running]
        inputs = make_inputs(*chunks)
        for i, rows in zip(
            running, np.split(compiled.forward(inputs), inputs.query_starts[1:-1]), strict=True
        ):
            parts[i].append(rows)
    return [np.concatenate(rows) for rows in parts]


def differing_prompts(a: Logits, b: Logits) -> list[int]:
    return [n for n, x, y in zip(PROMPT_LENS, a, b, strict=True) if x.tobytes() != y.tobytes()]


@pytest.fixture(scope="module")
def alone() -> Logits:
    return run_alone()


@pytest.mark.parametrize(
    ("chunk_len", "page_size"), [(1, 16), (7, 16), (64, 16), (66, 16), (66, 1), (16, 1), (66, 5), (1, 64)]
)
def test_logits_are_the_same_bits_however_prompts_are_batched_cut_and_paged(
    alone: Logits, chunk_len: int, page_size: int
) -> None:
    assert differing_prompts(alone, run_together(chunk_len=chunk_len, page_size=page_size)) == []


def test_one_product_over_all_rows_is_caught(alone: Logits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "linear", lambda x, matrices: x @ np.concatenate(matrices).T)

    assert differing_prompts(run_alone(), run_together(chunk_len=66, page_size=16)) != []


def test_random_model_gives_varied_answers_from_natural_logits(alone: Logits) -> None:
    logits = np.concatenate(alone)

    assert len(set(logits.argmax(axis=-1).tolist())) > len(logits) // 2
    assert 1.5 < logits.std() < 6


def placements(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The same rows in memory of their own, at odd offsets, and as columns of a wider array."""
    num_rows, width = rows.shape
    for offset in (0, 1, 3, 8):
        flat = np.zeros(offset + rows.size, np.float32)
        placed = flat[offset:].reshape(rows.shape)
        placed[:] = rows
        yield placed
        wide = np.zeros((num_rows, offset + width + 5), np.float32)
        wide[:, offset : offset + width] = rows
        yield wide[:, offset : offset + width]


MATRICES = [np.random.default_rng(1).standard_normal((n, 577), dtype=np.float32) for n in (5, 192, 576)]
WEIGHT = np.random.default_rng(2).standard_normal(577, dtype=np.float32)
ROW_FUNCTIONS = {
    "linear": lambda x: linear(x, MATRICES),
    "rms_norm": lambda x: rms_norm(x, WEIGHT, 1e-5),
    "rms_norm of heads": lambda x: rms_norm(x[:, :576], WEIGHT[:64], 1e-5),
    "layer_norm": lambda x: layer_norm(x, WEIGHT, WEIGHT, 1e-5),
    "gelu": gelu,
    "soft_cap": lambda x: soft_cap(x, 0.5),
    "exp": np.exp,
}


@pytest.mark.parametrize("name", ROW_FUNCTIONS)
def test_a_row_is_the_same_bits_among_others_and_wherever_it_lies(name: str) -> None:
    compute: Callable[[np.ndarray], np.ndarray] = ROW_FUNCTIONS[name]
    x = np.random.default_rng(3).standard_normal((9, 577), dtype=np.float32)
    alone = [compute(x[i : i + 1].copy()).tobytes() for i in range(9)]

    for num_rows in range(1, 10):
        for placed in placements(x[:num_rows]):
            assert [row.tobytes() for row in compute(placed)] == alone[:num_rows]


@pytest.mark.parametrize("kv_len", [1, 2, 15, 64, 65])
def test_attention_does_not_depend_on_what_lies_behind_the_row(kv_len: int) -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((80, 3, 64), dtype=np.float32) for i in range(3))
    query = q[:3].reshape(-1)

    expected = attend(query, k[:kv_len].copy(), v[:kv_len].copy(), 0.125)

    assert attend(query, k[:kv_len], v[:kv_len], 0.125).tobytes() == expected.tobytes()
