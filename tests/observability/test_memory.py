"""How much memory the process may use, from files as Linux writes them."""

from pathlib import Path

import pytest

from legato.observability.memory import free_memory_bytes, machine_memory_bytes, usable_memory_bytes

MEMINFO = "MemTotal:       24683328 kB\nMemFree:         5831732 kB\nMemAvailable:    {kib} kB\n"
NO_LIMIT_OF_VERSION_1 = "9223372036854771712\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Trees of /proc and /sys/fs/cgroup in one; 1 GiB is free."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(MEMINFO.format(kib=2**20))
    return tmp_path


def usable_mib(machine: Path) -> int:
    return usable_memory_bytes(machine, machine) >> 20


def limit(machine: Path, group: str, file: str, text: str) -> None:
    (machine / group).mkdir(parents=True, exist_ok=True)
    (machine / group / file).write_text(text)


def test_without_limits_it_is_what_is_free_on_the_machine(machine: Path) -> None:
    assert usable_mib(machine) == 1024
    limit(machine, "", "memory.max", "max\n")
    limit(machine, "memory", "memory.limit_in_bytes", NO_LIMIT_OF_VERSION_1)
    assert usable_mib(machine) == 1024


def test_where_the_system_does_not_tell_what_is_free_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) == machine_memory_bytes()
    assert usable_memory_bytes(tmp_path, tmp_path) == machine_memory_bytes()


def test_version_2_bounds_by_the_own_group_and_those_above(machine: Path) -> None:
    (machine / "self" / "cgroup").write_text("0::/user.slice/app.scope\n")
    limit(machine, "user.slice/app.scope", "memory.max", f"{300 << 20}\n")
    limit(machine, "elsewhere", "memory.max", "1\n")
    assert usable_mib(machine) == 300
    limit(machine, "user.slice", "memory.max", f"{200 << 20}\n")
    assert usable_mib(machine) == 200


def test_version_1_bounds_by_the_own_group_of_its_memory_controller(machine: Path) -> None:
    (machine / "self" / "cgroup").write_text("5:cpu,cpuacct:/a\n4:memory:/box/inner\n1:name=systemd:/b\n")
    limit(machine, "memory/box/inner", "memory.limit_in_bytes", f"{256 << 20}\n")
    limit(machine, "memory/a", "memory.limit_in_bytes", "1\n")
    assert usable_mib(machine) == 256


def test_container_sees_its_own_group_as_the_root(machine: Path) -> None:
    (machine / "self" / "cgroup").write_text("0::/../../docker/0123\n")
    limit(machine, "", "memory.max", f"{100 << 20}\n")
    assert usable_mib(machine) == 100


def test_limit_above_what_is_free_changes_nothing(machine: Path) -> None:
    limit(machine, "", "memory.max", f"{8 << 30}\n")
    assert usable_mib(machine) == 1024
