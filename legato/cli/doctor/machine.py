"""What this machine has, and how much of it this process may use."""

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from legato.core.descriptors import hard_descriptor_limit, max_connections
from legato.kernels.threads import UsableCores, usable_cores
from legato.observability.memory import free_memory_bytes, machine_memory_bytes, usable_memory_bytes

CPU_INFO = Path("/proc/cpuinfo")


def lines() -> Iterator[tuple[str, str]]:
    yield "platform", platform.platform()
    yield "processor", processor()
    yield "cores", _cores(usable_cores())
    yield "connections", _connections()
    yield "memory", _memory(usable_memory_bytes(), free_memory_bytes(), machine_memory_bytes())


def processor() -> str:
    """The model's name where the system tells it, else the architecture."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # no such file, as on macOS
        text = ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _cores(cores: UsableCores) -> str:
    granted = (
        "control groups set no limit"
        if math.isinf(cores.granted_cpus)
        else f"control groups grant the time of {cores.granted_cpus:g}"
    )
    return (
        f"{cores.num_usable} may compute: affinity allows {cores.num_cpus} of {os.cpu_count()} hardware"
        f" threads, on {cores.num_cores} physical cores; {granted}"
    )


def _connections() -> str:
    """As many as a server may have, which raises the limit for itself."""
    num_descriptors = hard_descriptor_limit()
    return f"up to {max_connections(num_descriptors)} at once, of {num_descriptors} descriptors (ulimit -Hn)"


def _memory(usable_bytes: int, free_bytes: int, machine_bytes: int) -> str:
    limit = "the control group's limit" if usable_bytes < free_bytes else "what is free now"
    return f"{_gib(usable_bytes)} of {_gib(machine_bytes)} may be used: {limit}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
