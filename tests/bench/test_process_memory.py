"""Peaks of a process and of those that it has started."""

import os
from pathlib import Path

from legato.bench.process_memory import peak_rss_bytes


def make_process(proc: Path, pid: int, peak_kb: int, children: str = "") -> None:
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_text(children)
    (proc / str(pid) / "status").write_text(f"Name:\tx\nVmPeak:\t 999999 kB\nVmHWM:\t  {peak_kb} kB\n")


def test_peaks_of_the_whole_family_are_added_up(tmp_path: Path) -> None:
    make_process(tmp_path, 7, 100, children="8 9 ")
    make_process(tmp_path, 8, 20, children="10 ")
    make_process(tmp_path, 10, 3)
    assert peak_rss_bytes(7, tmp_path) == 123 * 1024  # 9 has ended


def test_process_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert peak_rss_bytes(7, tmp_path) is None


def test_this_process_has_some() -> None:
    assert (peak_rss_bytes(os.getpid()) or 0) > 1_000_000
