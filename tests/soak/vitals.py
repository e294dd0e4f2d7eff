"""What a server's two processes hold: memory, descriptors, threads, as Linux tells it."""

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Vitals:
    """Of one process."""

    rss_bytes: int
    num_descriptors: int
    num_threads: int

    @classmethod
    def of(cls, pid: int) -> "Vitals":
        status = (PROC / str(pid) / "status").read_text()
        return cls(
            rss_bytes=int(re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[0]) * 1024,
            num_descriptors=len(list((PROC / str(pid) / "fd").iterdir())),
            num_threads=int(re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE)[0]),
        )

    def __str__(self) -> str:
        return (
            f"{self.rss_bytes / 2**20:7.1f} MiB {self.num_descriptors:4d} descriptors"
            f" {self.num_threads:3d} threads"
        )


def engine_pid(server_pid: int) -> int | None:
    """The server's engine process; None while there is none."""
    for children in (PROC / str(server_pid) / "task").glob("*/children"):
        for pid in children.read_text().split():
            try:
                command = (PROC / pid / "cmdline").read_bytes()
            except OSError:
                continue
            if b"legato.engine" in command:
                return int(pid)
    return None
