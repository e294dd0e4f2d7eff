"""What computes: the backend that was asked for or that this machine has, with its sampler."""

import logging
from dataclasses import dataclass

from legato.backends.backend import Backend
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.packed_cache import PackedCache
from legato.backends.reference import ReferenceBackend
from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.kernels.library import NoKernels, open_device
from legato.sampling.grammar import RowGrammars
from legato.sampling.row_sampler import NativeSampler, ReferenceSampler, Sampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compute:
    """A backend, who samples from its logits, and how it keeps numbers.

    kv_dtype      what keys and values are kept as
    numeric_mode  requests have equal bits on machines of one mode
    """

    backend: Backend
    sampler: Sampler
    kv_dtype: str
    numeric_mode: str


def choose_compute(
    config: EngineConfig,
    scheduling: SchedulerConfig,
    cache: PackedCache | None = None,
    grammars: RowGrammars | None = None,
) -> Compute:
    """The cpu backend where its kernels can be loaded, else the reference, with a warning that says why.

    cache     where the cpu backend keeps its packed weights
    grammars  of the sampler's rows; None: the model has no tokenizer
    Raises ConfigError when --backend cpu was asked for and cannot be had, or settings contradict each other.
    """
    is_quantized = config.quantization != "none"  # on load
    if is_quantized and config.dtype != "auto":
        raise ConfigError(
            f"--quantization {config.quantization} keeps weights quantised, and --dtype {config.dtype} would"
            " decode them: leave one of the two out"
        )
    if config.backend == "reference":
        return _reference(config, grammars)
    device = open_device(config.threads)
    if isinstance(device, NoKernels):
        if config.backend == "cpu":
            raise ConfigError(f"--backend cpu: {device.reason}")
        logger.warning("%s. Until then the reference backend serves, many times slower", device.reason)
        return _reference(config, grammars)
    is_exact = config.dtype == "float32"
    options = CpuOptions(
        float_weights="f32" if is_exact else "bf16",
        is_quantized=config.dtype == "auto",
        max_tokens=scheduling.max_step_tokens,
        max_samples=scheduling.max_step_logits,
    )
    number_format = config.quantization if is_quantized else config.dtype
    usual_kv = "float32" if is_exact else "bfloat16"
    kv_dtype = usual_kv if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    unusual = [] if kv_dtype == usual_kv else [f"kv-{kv_dtype}"]
    return Compute(
        backend=CpuBackend(device, options, cache),
        sampler=NativeSampler(device, grammars),
        kv_dtype=kv_dtype,
        numeric_mode="-".join(["cpu", device.isa, number_format, *unusual]),
    )


def _reference(config: EngineConfig, grammars: RowGrammars | None) -> Compute:
    """It decodes every weight: what is quantised on load is rounded all the same."""
    if config.kv_cache_dtype not in ("auto", "float32"):
        raise ConfigError(
            f"--kv-cache-dtype {config.kv_cache_dtype}: the reference backend keeps keys and values in"
            " float32 alone. Leave the flag out, or let the kernels compute: --backend cpu"
        )
    number_format = "float32" if config.quantization == "none" else config.quantization
    return Compute(
        ReferenceBackend(),
        ReferenceSampler(grammars),
        kv_dtype="float32",
        numeric_mode=f"reference-{number_format}",
    )
