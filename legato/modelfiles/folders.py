"""Where legato keeps files of its own."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$LEGATO_HOME, else legato in $XDG_CACHE_HOME, else in ~/.cache."""
    if home := os.environ.get("LEGATO_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "legato"


def tokenizers_folder() -> Path:
    """Where tokenizers are kept that were built of something else. It may be deleted."""
    return cache_folder() / "tokenizers"


def packed_folder() -> Path:
    """Where weights are kept as the kernels read them: $LEGATO_PACKED_FOLDER, else beside the models.

    It may be deleted: they are packed again.
    """
    if folder := os.environ.get("LEGATO_PACKED_FOLDER"):
        return Path(folder).expanduser()
    return cache_folder() / "packed"
