"""The output of a batch: rows are appended whole, and what an earlier run wrote is found again."""

import fcntl
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from legato.cli.batch.lines import Answered
from legato.cli.batch.rows import ROW_START, Row, decode_row, encode_row
from legato.core.errors import ConfigError, LegatoError


class OutputError(LegatoError):
    """A row cannot be written."""


class Output:
    """Appends rows. Each goes to the system at once, so that no end of this process takes back any.

    answered  what was there before
    """

    def __init__(self, file: io.FileIO, name: str, answered: Answered) -> None:
        self.answered = answered
        self._file = file
        self._name = name

    def write(self, row: Row) -> None:
        """Raises OutputError; what was written of the row then, the next run cuts off."""
        data = memoryview(encode_row(row))
        try:
            while data:
                data = data[self._file.write(data) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {self._name}: {error.strerror}") from error


@contextmanager
def open_output(path: Path | None) -> Iterator[Output]:
    """The file at `path`, for this process alone; None is standard output, which is never read again.

    Raises ConfigError when it cannot be opened, holds something else, or is another batch's.
    """
    if path is None:
        with io.FileIO(sys.stdout.fileno(), "w", closefd=False) as stdout:
            yield Output(stdout, "standard output", Answered())
        return
    try:
        file = io.FileIO(path, "a+")
    except OSError as error:
        raise ConfigError(f"--output-file {path}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file closes, or we die
        except OSError:
            raise ConfigError(f"--output-file {path}: another legato batch writes to it") from None
        yield Output(file, str(path), _recover(file, path))


def _recover(file: io.FileIO, path: Path) -> Answered:
    """Read the rows that are there, and cut off one that was being written when its process ended."""
    answered, whole_bytes = Answered(), 0
    file.seek(0)
    with io.BufferedReader(io.FileIO(os.dup(file.fileno()))) as rows:
        for number, text in enumerate(rows, 1):
            if not text.endswith(b"\n"):
                if not (text.startswith(ROW_START) or ROW_START.startswith(text)):
                    raise _not_ours(path, number)
                file.truncate(whole_bytes)
                break
            try:
                row = decode_row(text)
            except msgspec.DecodeError:
                raise _not_ours(path, number) from None
            whole_bytes += len(text)
            _note(row, answered)
    return answered


def _note(row: Row, answered: Answered) -> None:
    if row.response is None:
        if row.error is not None:
            answered.refused.add(row.error.line)
    elif row.custom_id is not None:
        answered.failures[row.custom_id] = row.is_failure


def _not_ours(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"--output-file {path}: its line {number} is no row of a batch's output; name another file, which"
        " is made if it is not there"
    )
