"""The file of a recording: frames that survive the death of who writes them, in two halves of a bound."""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import msgspec

from legato.core.errors import ConfigError
from legato.observability.recording.frames import AnyFrame, Start

logger = logging.getLogger(__name__)

MAGIC = b"legato recording 1\n"
_WORD = 4  # bytes, little endian; before each frame stand its length and its checksum, a word each
_HEAD_BYTES = 2 * _WORD


def older_half(path: Path) -> Path:
    """Where the part before that in `path` is kept."""
    return path.with_name(f"{path.name}.1")


class RecordingWriter:
    """Appends frames to a file; when it is half as large as allowed, it takes the place of the older half.

    What was written stays when the process is killed. A file that cannot be written to any more (the disk is
    full) ends the recording, not the engine. Raises ConfigError when `path` cannot be used for a recording.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._half_bytes = max_bytes // 2
        self._encoder = msgspec.msgpack.Encoder()
        self._start_bytes = 0  # of the latest Start
        self._since_start = 0  # bytes after it
        self._fd: int | None = self._open()

    @property
    def is_full(self) -> bool:
        """Whether the next frame had better be a Start, with which a new half begins."""
        is_large = self._size >= self._half_bytes and self._since_start >= self._start_bytes
        return is_large and self._fd is not None

    def start(self, frame: Start) -> None:
        """Begin with a scheduler: in a new half when this one is full."""
        try:
            if self.is_full:
                self._rotate()
        except (OSError, ConfigError) as error:
            self._fail(error)
        before = self._size
        self.write([frame])
        self._start_bytes, self._since_start = self._size - before, 0

    def write(self, frames: Sequence[AnyFrame]) -> None:
        if self._fd is None:
            return
        data = b"".join(map(self._framed, frames))
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(f"{written} of {len(data)} bytes were written")
        except OSError as error:
            self._fail(error)
        self._size += len(data)
        self._since_start += len(data)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _framed(self, frame: AnyFrame) -> bytes:
        data = self._encoder.encode(frame)
        return len(data).to_bytes(_WORD, "little") + crc32(data).to_bytes(_WORD, "little") + data

    def _open(self) -> int:
        """A file to append to: new, or what another engine has left."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--record {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_size == 0:
                os.write(fd, MAGIC)
            else:
                os.truncate(fd, _whole_bytes(self._path))  # without what a kill has torn
            self._size = os.fstat(fd).st_size
        except BlockingIOError:
            os.close(fd)
            raise ConfigError(f"--record {self._path}: another engine records to this file") from None
        except (OSError, ConfigError) as error:
            os.close(fd)
            raise ConfigError(f"--record {self._path}: {error}") from error
        return fd

    def _rotate(self) -> None:
        self.close()
        os.replace(self._path, older_half(self._path))
        self._fd = self._open()

    def _fail(self, error: Exception) -> None:
        logger.error("the recording ends here, requests go on: %s: %s", self._path, error)
        self.close()


def read_recording(path: Path) -> Iterator[AnyFrame]:
    """The frames of a file, up to where its writer was killed. Raises ConfigError when it is no recording."""
    decoder = msgspec.msgpack.Decoder(AnyFrame)
    with _opened(path) as file:
        while (start := file.tell()) and (data := _next_frame(file)) is not None:
            try:
                yield decoder.decode(data)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{path} is damaged at byte {start}: {error}") from None
        if file.read(1):
            raise ConfigError(f"{path} is damaged at byte {start}: a checksum does not fit")


def _whole_bytes(path: Path) -> int:
    """Bytes of a recording up to where it was torn, or damaged."""
    with _opened(path) as file:
        end = file.tell()
        while _next_frame(file) is not None:
            end = file.tell()
    return end


def _opened(path: Path) -> BinaryIO:
    """The file behind its first line. Raises ConfigError when that is another's, or cannot be read."""
    try:
        file = path.open("rb")
        line = file.read(len(MAGIC))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if line != MAGIC:
        file.close()
        raise ConfigError(f"{path} is no recording, or one of another version of legato")
    return file


def _next_frame(file: BinaryIO) -> bytes | None:
    """The next frame's bytes; None at the end, in the last frame if that is torn, or after a damaged one."""
    head = file.read(_HEAD_BYTES)
    length, checksum = (int.from_bytes(part, "little") for part in (head[:_WORD], head[_WORD:]))
    data = file.read(length)
    is_whole = len(head) == _HEAD_BYTES and len(data) == length and crc32(data) == checksum
    return data if is_whole else None
