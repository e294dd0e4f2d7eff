"""The same promise on the cpu backend, for each instruction set here and each format of weights."""

from functools import cache

import pytest

from legato.ipc.messages import AddRequest
from legato.kernels.library import instruction_sets
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
from tests.engine.test_exactness import ARRIVALS_AT_ONCE, MODES, NUM_FULL, NUM_SHORT
from tests.fakes import random_model
from tests.quantized import FORMATS, as_format

SHORT_FORMATS = [each for each in FORMATS if each != "q8"]  # the head of "mixed" is q8
CPU_MODES = MODES | {"one thread": {"threads": 1}, "three threads": {"threads": 3}}


def settings_of(weights: str) -> dict[str, str]:
    return {"backend": "cpu", "dtype": {"f32": "float32", "bf16": "bfloat16"}.get(weights, "auto")}


@cache
def model_of(weights: str) -> Model:
    config, values = random_model(seed=1)
    return config, as_format(values, weights)  # type: ignore[return-value]


@cache
def alone(isa: str, weights: str, count: int) -> tuple[list[AddRequest], Run]:
    """What each request gives by itself; `isa` is in force already."""
    requests = seeded_requests(count, vocab_size=2048)
    return requests, run_alone(model_of(weights), requests, **settings_of(weights))


def check(isa: str, weights: str, mode: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_ISA", isa)
    requests, expected = alone(isa, weights, count)
    found = run(build_engine(model_of(weights), **settings_of(weights), **CPU_MODES[mode]), requests)
    same_bits(found, expected)
    assert (found.num_preemptions > 0) >= ("preempted" in mode)


def test_kernels_are_built_where_they_are_tested() -> None:
    assert "scalar" in instruction_sets(), "build the extension: make setup"


@pytest.mark.parametrize("weights", SHORT_FORMATS)
@pytest.mark.parametrize("mode", CPU_MODES)
def test_a_request_has_the_bits_that_it_has_alone(
    mode: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(instruction_sets()[0], weights, mode, NUM_SHORT, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("mode", CPU_MODES)
def test_two_hundred_requests_have_the_bits_that_they_have_alone(
    mode: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(instruction_sets()[0], weights, mode, NUM_FULL, monkeypatch)


@pytest.mark.parametrize("isa", instruction_sets()[1:])
@pytest.mark.parametrize(
    "mode",
    [
        "batched",
        "preempted",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("chunks of 16", "pages of 1")),
    ],
)
def test_every_instruction_set_keeps_the_promise(
    isa: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(isa, "q4", mode, NUM_SHORT, monkeypatch)


@pytest.mark.parametrize(
    "mode", ["batched", "chunks of 16", "no prefix cache", "preempted", "pages of 1", "three threads"]
)
def test_keys_and_values_in_int8_keep_the_promise(mode: str) -> None:
    requests = seeded_requests(NUM_SHORT, vocab_size=2048)
    settings = settings_of("bf16") | {"kv_cache_dtype": "int8"}
    found = run(build_engine(model_of("bf16"), **settings, **CPU_MODES[mode]), requests)
    same_bits(found, run_alone(model_of("bf16"), requests, **settings))


@pytest.mark.parametrize("weights", SHORT_FORMATS)
@pytest.mark.parametrize("mode", ARRIVALS_AT_ONCE)
def test_sharing_a_prefix_on_arrival_leaves_the_bits_alone(mode: str, weights: str) -> None:
    requests = alike_requests(6, prefix_len=90, vocab_size=2048)
    engine = build_engine(model_of(weights), **settings_of(weights), **ARRIVALS_AT_ONCE[mode])
    found = run(engine, requests, arrivals_per_step=6)
    same_bits(found, run_alone(model_of(weights), requests, **settings_of(weights)))
    assert found.prefix_hits >= 5 * 64
