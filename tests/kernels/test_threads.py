"""How many threads compute by default; that they compute the same is in test_tape.py."""

import os
from pathlib import Path

import pytest

from legato.kernels import threads


def test_a_group_grants_the_least_of_its_own_limit_and_those_above(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "outer" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    assert threads.granted_cpus(tmp_path, tmp_path) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert threads.granted_cpus(tmp_path, tmp_path) == 0.5


def test_version_1_limits_are_read_and_no_limit_is_infinite(tmp_path: Path) -> None:
    assert threads.granted_cpus(tmp_path, tmp_path) == float("inf")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.granted_cpus(tmp_path, tmp_path) == 3


def test_hardware_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(threads, "CPUS", tmp_path)
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    for allowed, cores in [(range(8), 4), ([0, 4], 1), ([0, 1, 5], 2)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: set(allowed))
        assert threads.num_usable_cores() == cores


def test_less_than_one_processor_is_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("20000 100000\n")
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    assert threads.num_usable_cores() == 1
