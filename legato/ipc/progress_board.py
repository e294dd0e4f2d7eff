"""A page of memory that both processes see: which step computes, and for whom, also after a sudden death."""

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

SIZE = 64 * 1024
_HEADER = struct.Struct("<QI")  # how often something began or ended; bytes of ids
_PULSE_AT = 16  # uint64, counted up by what computes
_IDS_AT = 24


class Reading(NamedTuple):
    """What the board says: `ticks` moves whenever a step begins, gets on or ends."""

    ticks: int
    request_ids: tuple[str, ...]


class ProgressBoard:
    """Written by the engine's computing thread, read by the API process, which made it.

    A kill between two writes leaves no ids at worst: nobody is blamed then.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, SIZE)
        self._ticks = 0

    @classmethod
    def create(cls) -> "ProgressBoard":
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, SIZE)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def pulse(self) -> memoryview:
        """[1] uint64: its writer counts up in it while a step computes. The board must outlive it."""
        return memoryview(self._memory)[_PULSE_AT:_IDS_AT].cast("Q")

    def begin(self, request_ids: Sequence[str]) -> None:
        """A step for these requests computes from now on; ids beyond the board's room are left out."""
        names = "\n".join(request_ids).encode()
        if len(names) > SIZE - _IDS_AT:
            names = names[: names.rindex(b"\n", 0, SIZE - _IDS_AT)]
        self.end()
        self._memory[_IDS_AT : _IDS_AT + len(names)] = names
        _HEADER.pack_into(self._memory, 0, self._ticks, len(names))

    def end(self) -> None:
        """Nothing computes."""
        self._ticks += 1
        _HEADER.pack_into(self._memory, 0, self._ticks, 0)

    def read(self) -> Reading:
        ticks, num_bytes = _HEADER.unpack_from(self._memory, 0)
        (beats,) = struct.unpack_from("<Q", self._memory, _PULSE_AT)
        names = bytes(self._memory[_IDS_AT : _IDS_AT + min(num_bytes, SIZE - _IDS_AT)])
        return Reading(ticks + beats, tuple(names.decode(errors="replace").split("\n")) if names else ())

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("legato-progress")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
