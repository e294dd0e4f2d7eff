"""How many threads may compute: physical cores, less what affinity and control groups take away."""

import os
from dataclasses import dataclass
from pathlib import Path

from legato.core.control_groups import CGROUPS, PROC, own_groups

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class UsableCores:
    """What bounds the threads of this process.

    num_cpus      hardware threads that affinity allows
    num_cores     physical cores that these belong to
    granted_cpus  processors' worth of time that control groups grant; inf without a limit
    """

    num_cpus: int
    num_cores: int
    granted_cpus: float

    @property
    def num_usable(self) -> int:
        """At least 1. Two hardware threads of one core share its vector units: a second one gains nothing."""
        return max(1, int(min(self.num_cores, self.granted_cpus)))


def usable_cores() -> UsableCores:
    """What affinity and control groups leave to this process."""
    cpus = _allowed_cpus()
    return UsableCores(len(cpus), len({_core_of(cpu) for cpu in cpus}), granted_cpus(PROC, CGROUPS))


def num_usable_cores() -> int:
    """Physical cores that this process may use, at least 1."""
    return usable_cores().num_usable


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int) -> str:
    """A name for the core that `cpu` is a hardware thread of."""
    try:
        return (CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:  # no such tree, as on macOS: every one counts
        return str(cpu)


def granted_cpus(proc: Path, cgroups: Path) -> float:
    """Processors' worth of time that the groups of this process grant; inf without a limit."""
    return min(_quota(group) for group in own_groups("cpu", proc, cgroups))


def _quota(group: Path) -> float:
    """The limit of one group, in cpu.max (version 2) or in cpu.cfs_quota_us (version 1)."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except OSError:
        try:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return float("inf")
    return float("inf") if quota in {"max", "-1"} else int(quota) / int(period)
