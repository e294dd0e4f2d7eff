"""How much memory there is, and how much of it this process may use."""

import os
from collections.abc import Sequence
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory_bytes(cgroup_files: Sequence[Path] = CGROUP_LIMITS) -> int:
    """Memory that this process may use: the machine's, or its control group's when that is less."""
    limits = [machine_memory_bytes()]
    for file in cgroup_files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
