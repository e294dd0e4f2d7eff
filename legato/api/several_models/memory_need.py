"""How much memory a model's engine will take, told from its files before it is loaded."""

import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError
from legato.modelfiles.catalog import Report, resolve, served_name
from legato.modelfiles.fingerprint import weights_files
from legato.modelfiles.gguf_header import read_gguf_header
from legato.modelfiles.model_config import read_model_config
from legato.modelfiles.weight_files import absence

logger = logging.getLogger(__name__)

GIB, MIB = 2**30, 2**20
PROCESS_BYTES = 96 * MIB  # of an engine beside its weights and K/V store
MIN_POOL_BYTES = 4 * MIB  # of a K/V store whose size is chosen here
MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_MAX_VALUES_IN_BYTE = 2
_UNUSABLE = (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError)
_VALUES_IN_I32 = 8  # AWQ and GPTQ pack so many 4-bit weights into one


@dataclass(frozen=True, slots=True)
class Need:
    """A model's settings with the size of its K/V store, and the memory that its engine takes in all."""

    config: EngineConfig
    num_bytes: int


def need_of(config: EngineConfig, limit_bytes: int, num_models: int, report: Report = logger.info) -> Need:
    """What one of so many models needs. Finds its files, downloading what is not here.

    report  called with plain lines about a download

    A K/V store whose size nobody gave gets 1 GiB, half of what its weights leave of the limit, or an equal
    part of half of the limit, whichever is least: engines that start side by side must not each count on the
    same free memory. Raises ModelError, and ConfigError for a model that can never fit.
    """
    path = resolve(config.model, revision=config.revision, report=report).path
    read_model_config(path)  # what can be told from the model's header is told at the start
    fixed_bytes = PROCESS_BYTES + weight_bytes(path, config)
    pool_bytes = config.kv_cache_memory_bytes
    if pool_bytes is None:
        free_bytes = limit_bytes - fixed_bytes
        pool_bytes = max(min(GIB, free_bytes // 2, limit_bytes // (2 * num_models)), MIN_POOL_BYTES)
    num_bytes = fixed_bytes + pool_bytes
    if num_bytes > limit_bytes:
        name = (config.served_model_name or (served_name(config.model),))[0]
        raise ConfigError(
            f"{name} needs about {in_mib(num_bytes)}, its K/V store of {in_mib(pool_bytes)} included, and"
            f" models may take {in_mib(limit_bytes)} in all; raise --max-models-memory-bytes, lower"
            " --kv-cache-memory-bytes or leave the model out"
        )
    return Need(replace(config, kv_cache_memory_bytes=pool_bytes), num_bytes)


def weight_bytes(path: Path, config: EngineConfig) -> int:
    """About the memory that a model's weights take. Raises ModelError for files that cannot be read."""
    files = weights_files(path)
    if not files:
        raise ModelError(absence(path))
    for file in files:
        if file.stat().st_size == 0:
            raise ModelError(f"{file} is empty; download it again")
    if config.dtype == "float32" or config.backend == "reference":
        return 4 * sum(map(_num_values, files))
    if config.dtype == "bfloat16":
        return 2 * sum(map(_num_values, files))
    return sum(map(_kept_bytes, files))


def _kept_bytes(file: Path) -> int:
    """As they lie in the file; float32 becomes bfloat16."""
    size = file.stat().st_size
    if file.suffix != ".safetensors":
        return size
    return size - sum(2 * count for dtype, count in _safetensors_sizes(file) if dtype == "F32")


def _num_values(file: Path) -> int:
    if file.suffix == ".gguf":
        return sum(math.prod(tensor.shape) for tensor in read_gguf_header(file).tensors.values())
    if file.suffix == ".safetensors":
        return sum(
            count * (_VALUES_IN_I32 if dtype == "I32" else 1) for dtype, count in _safetensors_sizes(file)
        )
    return file.stat().st_size // 2  # of a pickled file: no value takes less


def _safetensors_sizes(file: Path) -> list[tuple[str, int]]:
    """The type of each tensor and the number of its elements."""
    try:
        with file.open("rb") as stream:
            header_len = int.from_bytes(stream.read(8), "little")
            if header_len > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {header_len} bytes")
            header = json.loads(stream.read(header_len))
        sizes = [
            (str(tensor["dtype"]), math.prod(map(int, tensor["shape"])))
            for name, tensor in header.items()
            if name != "__metadata__"
        ]
        if any(not 0 <= count <= _MAX_VALUES_IN_BYTE * file.stat().st_size for _, count in sizes):
            raise ValueError("a tensor's shape does not fit the file")
        return sizes
    except _UNUSABLE as error:
        raise ModelError(f"{file} is not a usable .safetensors file: {error!r}") from error


def in_mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"
