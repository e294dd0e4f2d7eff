"""How much memory there is, and how much of it this process may use."""

import os
import re
from pathlib import Path

from legato.core.control_groups import CGROUPS, PROC, own_groups

LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and of version 1


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that this process may use: what is free on the machine, or a control group's lower limit."""
    return min(free_memory_bytes(proc), *_limits(proc, cgroups))


def free_memory_bytes(proc: Path = PROC) -> int:
    """What programs can have without swapping, caches given up; all of it where the system does not tell."""
    found = re.search(r"^MemAvailable: *(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else machine_memory_bytes()


def _limits(proc: Path, cgroups: Path) -> list[int]:
    """The limits of the groups that this process is in, and the machine's memory, which bounds it anyway."""
    texts = [
        _text(group / name).strip() for group in own_groups("memory", proc, cgroups) for name in LIMIT_FILES
    ]
    return [machine_memory_bytes(), *(int(text) for text in texts if text.isdigit())]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
