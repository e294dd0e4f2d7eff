"""A short name for a model's weights: files that differ have different ones, copies have the same."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from legato.modelfiles.weight_files import files_of, gguf_parts, layout_of

_SAMPLES, _SAMPLE_BYTES = (
    64,
    4096,
)  # read from each file, evenly spread: all of it would take longer than the start


def weights_files(path: Path) -> list[Path]:
    """The files that are there and hold the weights of a directory or .gguf file."""
    if path.is_file():
        return [each for each in gguf_parts(path) if each.is_file()]
    layout = layout_of(path)
    return [each for each in files_of(path, layout) if each.is_file()] if layout else []


def weights_identity(path: Path) -> dict[str, Any]:
    """What tells these weights from others in the same place: beside samples of them when they were written.

    Samples alone would miss a change that lies between them.
    """
    states = [file.stat() for file in weights_files(path)]
    return {
        "fingerprint": weights_fingerprint(path),
        "files": [[state.st_size, state.st_mtime_ns] for state in states],
    }


@cache
def weights_fingerprint(path: Path) -> str:
    """Digest of sizes and samples of the files that hold the weights of a directory or .gguf file."""
    digest = hashlib.blake2b(digest_size=8)
    for file in weights_files(path):
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            for index in range(_SAMPLES):
                stream.seek(index * size // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()
