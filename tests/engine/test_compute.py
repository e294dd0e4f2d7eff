"""Which backend computes, and what is said when it is not the one that was hoped for."""

import logging

import pytest

import legato.engine.compute as compute
from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.kernels.library import NoKernels

SCHEDULING = SchedulerConfig(
    max_num_seqs=4, max_step_tokens=64, mixed_prefill_tokens=32, long_prefill_tokens=None, max_model_len=128
)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = NoKernels("legato was installed without its compiled kernels. Install a compiler")
    monkeypatch.setattr(compute, "open_device", lambda threads: absent)


@pytest.mark.parametrize(
    ("dtype", "mode", "kv_dtype"),
    [("auto", "auto", "bfloat16"), ("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")],
)
def test_kernels_compute_by_default(dtype: str, mode: str, kv_dtype: str) -> None:
    chosen = compute.choose_compute(EngineConfig(dtype=dtype), SCHEDULING)
    assert chosen.backend.name == "cpu"
    assert chosen.numeric_mode.startswith("cpu-")
    assert chosen.numeric_mode.endswith(mode)
    assert chosen.kv_dtype == kv_dtype


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "mode"),
    [
        ("auto", "int8", "auto-kv-int8"),
        ("float32", "bfloat16", "float32-kv-bfloat16"),
        ("auto", "bfloat16", "auto"),
    ],
)
def test_format_of_keys_and_values_is_part_of_the_numeric_mode(dtype: str, kv_dtype: str, mode: str) -> None:
    chosen = compute.choose_compute(EngineConfig(dtype=dtype, kv_cache_dtype=kv_dtype), SCHEDULING)
    assert chosen.kv_dtype == kv_dtype
    assert chosen.numeric_mode.partition("-")[2].partition("-")[2] == mode


@pytest.mark.parametrize("kv_dtype", ["int8", "bfloat16"])
def test_reference_refuses_keys_and_values_that_it_cannot_keep(kv_dtype: str) -> None:
    config = EngineConfig(backend="reference", kv_cache_dtype=kv_dtype)
    with pytest.raises(
        ConfigError, match=f"--kv-cache-dtype {kv_dtype}: .*float32 alone. Leave the flag out"
    ):
        compute.choose_compute(config, SCHEDULING)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_quantisation_on_load_is_part_of_the_numeric_mode(backend: str, quantization: str) -> None:
    chosen = compute.choose_compute(EngineConfig(backend=backend, quantization=quantization), SCHEDULING)
    assert chosen.numeric_mode.startswith(backend)
    assert chosen.numeric_mode.endswith(f"-{quantization}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_quantising_and_decoding_at_once_is_refused(backend: str, dtype: str) -> None:
    config = EngineConfig(backend=backend, quantization="int8", dtype=dtype)
    with pytest.raises(ConfigError, match=f"--quantization int8 .*--dtype {dtype} .*leave one"):
        compute.choose_compute(config, SCHEDULING)


def test_reference_is_chosen_by_name() -> None:
    chosen = compute.choose_compute(EngineConfig(backend="reference"), SCHEDULING)
    assert (chosen.backend.name, chosen.numeric_mode) == ("reference", "reference-float32")


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_the_reference_serves_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = compute.choose_compute(EngineConfig(), SCHEDULING)
    assert chosen.backend.name == "reference"
    assert "without its compiled kernels. Install a compiler" in caplog.text


@pytest.mark.usefixtures("no_kernels")
def test_kernels_that_were_asked_for_and_are_absent_are_an_error_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"--backend cpu: .*Install a compiler"):
        compute.choose_compute(EngineConfig(backend="cpu"), SCHEDULING)
