"""Packed weights kept on disk from one start to the next; nothing that goes wrong here fails a start."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from legato.backends.packed_file import (
    Identity,
    PackedArray,
    UnusableError,
    map_packed_file,
    write_packed_file,
)

SUFFIX = ".packed"
KEPT_FILES = 8  # of all models; the ones that were not used for longest are deleted
_PARTIAL_PREFIX = ".partial-"

logger = logging.getLogger(__name__)


class PackedCache:
    """The files of one folder; each is of one model at one place, packed in one way.

    model         file or folder of the weights; what is kept of it is replaced when it changes
    source        names the content of its files
    quantization  what became of them when they were loaded
    """

    def __init__(self, folder: Path, model: Path, source: Identity, *, quantization: str = "none") -> None:
        self._folder = folder
        self._model = model.resolve()
        self._source = source
        self._quantization = quantization

    def path(self, packing: Mapping[str, str]) -> Path:
        """Where the weights are, packed so; `packing` holds the build too, which shares the place."""
        ways = (f"{key}={value}" for key, value in packing.items() if key != "build")
        place = [str(self._model), self._quantization, *ways]
        digest = hashlib.blake2b("\n".join(place).encode(), digest_size=6).hexdigest()
        return self._folder / f"{self._model.stem}-{digest}{SUFFIX}"

    def load(self, packing: Mapping[str, str]) -> dict[str, PackedArray] | None:
        """What was kept of this model, packed so; None when that is nothing of use."""
        path = self.path(packing)
        try:
            arrays = map_packed_file(path, self._identity(packing))
        except FileNotFoundError:
            return None
        except (UnusableError, OSError) as error:
            logger.info("packed weights in %s are not used: %s", path, error)
            return None
        with suppress(OSError):  # a folder that cannot be written has no files to choose from either
            os.utime(path)
        logger.info("packed weights are mapped from %s", path)
        return arrays

    def store(self, packing: Mapping[str, str], arrays: Mapping[str, PackedArray]) -> None:
        """Keep them: whole, or not at all."""
        path = self.path(packing)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _one_writer(self._folder) as partial:
                write_packed_file(partial, self._identity(packing), arrays)
                os.replace(partial, path)
                _delete_oldest(self._folder)
        except BlockingIOError:
            logger.info("packed weights are not kept this time: another process writes to %s", self._folder)
        except OSError as error:
            logger.warning(
                "packed weights cannot be kept in %s (%s): the next start packs them again."
                " Make it writable with room for them, or give --no-packed-cache",
                self._folder,
                error.strerror or error,
            )
        else:
            logger.info("packed weights are kept in %s: the next start maps them", path)

    def _identity(self, packing: Mapping[str, str]) -> Identity:
        return {"model": self._source, "quantization": self._quantization, "packing": packing}


@contextmanager
def _one_writer(folder: Path) -> Iterator[Path]:
    """A path to write to, deleted in the end; BlockingIOError while another process writes here."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file closes, or we die
        for leftover in folder.glob(_PARTIAL_PREFIX + "*"):  # of a process that died while it wrote
            leftover.unlink(missing_ok=True)
        partial = folder / f"{_PARTIAL_PREFIX}{os.getpid()}"
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)


def _delete_oldest(folder: Path) -> None:
    """Those who have a file mapped keep it: it is gone when the last of them has ended."""
    by_use = sorted(folder.glob("*" + SUFFIX), key=_used_at, reverse=True)
    for path in by_use[KEPT_FILES:]:
        path.unlink(missing_ok=True)


def _used_at(path: Path) -> float:
    return path.stat().st_mtime
