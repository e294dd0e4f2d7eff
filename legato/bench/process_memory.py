"""How much memory a process and those that it has started have had at most, as Linux tells it."""

import re
from collections.abc import Iterator
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_rss_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The peaks of the process and its descendants, added up; None where the system hides it."""
    peaks = [peak for each in _family(pid, proc) if (peak := _peak_bytes(each, proc)) is not None]
    return sum(peaks) if peaks else None


def _family(pid: int, proc: Path) -> Iterator[int]:
    yield pid
    for children in (proc / str(pid) / "task").glob("*/children"):
        for child in _text(children).split():
            yield from _family(int(child), proc)


def _peak_bytes(pid: int, proc: Path) -> int | None:
    found = _PEAK.search(_text(proc / str(pid) / "status"))
    return int(found[1]) * 1024 if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""
