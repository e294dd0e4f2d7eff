"""The same promise where a token's experts depend on it, and their rows are grouped with those of others."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from legato.backends.backend import KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.packed_cache import PackedCache
from legato.backends.stored_weight import StoredWeight, StoredWeights, headers_of
from legato.ipc.messages import AddRequest
from legato.kernels.library import instruction_sets
from legato.modelfiles.model_config import ModelConfig
from legato.models.registry import build_model
from tests.backends.steps import Chunk, make_inputs
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
from tests.engine.test_exactness import ARRIVALS_AT_ONCE, NUM_FULL
from tests.engine.test_exactness_cpu import CPU_MODES, settings_of
from tests.fakes import natural_weights
from tests.kernels.conftest import open_or_fail
from tests.quantized import FORMATS, as_format

NUM_REQUESTS, VOCAB = 24, 512
SETTINGS = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
}
MODELS = {
    "Qwen3MoeForCausalLM": SETTINGS
    | {
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "MixtralForCausalLM": SETTINGS | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40},
}

both = pytest.mark.parametrize("architecture", MODELS)


@cache
def model_of(architecture: str, weights: str) -> Model:
    settings = MODELS[architecture]
    config = ModelConfig(
        architecture=architecture,
        file_format="hf",
        source="random",
        settings=settings,
        vocab_size=VOCAB,
        eos_ids=frozenset({2}),
    )
    return config, as_format(natural_weights(config, seed=3), weights)  # type: ignore[return-value]


@cache
def alone(architecture: str, weights: str, isa: str, count: int) -> tuple[list[AddRequest], Run]:
    """What each request gives by itself; `isa` is in force already."""
    requests = seeded_requests(count, VOCAB)
    return requests, run_alone(model_of(architecture, weights), requests, **settings_of(weights))


def check(architecture: str, weights: str, mode: str, isa: str = "", count: int = NUM_REQUESTS) -> None:
    requests, expected = alone(architecture, weights, isa, count)
    model = model_of(architecture, weights)
    found = run(build_engine(model, **settings_of(weights), **CPU_MODES[mode]), requests)
    same_bits(found, expected)
    assert (found.num_preemptions > 0) >= ("preempted" in mode)


@both
@pytest.mark.parametrize("mode", CPU_MODES)
def test_a_request_has_the_bits_that_it_has_alone(architecture: str, mode: str) -> None:
    check(architecture, "mixed", mode)


@pytest.mark.slow
@both
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("mode", CPU_MODES)
def test_two_hundred_requests_have_the_bits_that_they_have_alone(
    architecture: str, weights: str, mode: str
) -> None:
    check(architecture, weights, mode, count=NUM_FULL)


@both
@pytest.mark.parametrize("isa", instruction_sets()[1:])
def test_every_instruction_set_keeps_the_promise(
    architecture: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_ISA", isa)
    check(architecture, "bf16", "preempted", isa)


@both
@pytest.mark.parametrize("mode", ["chunks of 16", "preempted"])
def test_reference_keeps_the_promise(architecture: str, mode: str) -> None:
    model, requests = model_of(architecture, "f32"), seeded_requests(8, VOCAB)
    changes = CPU_MODES[mode] | ({"num_pages": 9} if mode == "preempted" else {})
    found = run(build_engine(model, **changes), requests)
    same_bits(found, run_alone(model, requests))
    assert (found.num_preemptions > 0) == (mode == "preempted")


@both
@pytest.mark.parametrize("mode", ARRIVALS_AT_ONCE)
def test_sharing_a_prefix_on_arrival_leaves_the_bits_alone(architecture: str, mode: str) -> None:
    requests = alike_requests(6, prefix_len=90, vocab_size=VOCAB)
    model = model_of(architecture, "q4")
    found = run(
        build_engine(model, **settings_of("q4"), **ARRIVALS_AT_ONCE[mode]), requests, arrivals_per_step=6
    )
    same_bits(found, run_alone(model, requests, **settings_of("q4")))
    assert found.prefix_hits >= 5 * 64


@both
def test_rows_go_to_many_experts(architecture: str) -> None:
    """Else the tests above would test little: text is varied, and so are the experts of its tokens."""
    _, found = alone(architecture, "mixed", "", NUM_REQUESTS)
    assert len({token for tokens in found.tokens.values() for token in tokens}) > 50
    rows = np.random.default_rng(0).standard_normal((200, 128), dtype=np.float32)
    router = model_of(architecture, "f32")[1]["layers.0.router"]
    counts = np.bincount((rows @ router.T).argmax(axis=1), minlength=len(router))
    assert (counts > 0).all()


@both
def test_experts_that_were_packed_at_an_earlier_start_give_the_same_bits(
    architecture: str, tmp_path: Path
) -> None:
    config, weights = model_of(architecture, "mixed")
    program = build_model(config).program
    layout = KVLayout.of(program, 8, 16)
    logits = []
    for given in (weights, StoredWeights(headers_of(weights), unread)):  # type: ignore[arg-type]
        cache = PackedCache(tmp_path / "packed", tmp_path / "model", {"fingerprint": "content"})
        options = CpuOptions("bf16", is_quantized=True, max_tokens=64, max_samples=64)
        backend = CpuBackend(open_or_fail(2), options, cache)
        compiled = backend.compile(program, given, layout)
        if backend.keeping is not None:
            backend.keeping.result(timeout=30)
        logits.append(compiled.forward(make_inputs(Chunk(list(range(40)), 0, [5, 2, 7]))).tobytes())
    assert logits[0] == logits[1]


def unread(name: str) -> StoredWeight:
    raise AssertionError(f"{name} is read")
