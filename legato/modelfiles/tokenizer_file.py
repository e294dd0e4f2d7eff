"""Where a model's tokenizer.json is; for a .gguf file, which has none, where one made of it is kept."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from legato.modelfiles.fingerprint import weights_identity
from legato.modelfiles.folders import cache_folder

KEPT_FILES = 16  # of all models; the ones that were written first are deleted
_READING = 1  # raise it when a .gguf file's tokenizer is read otherwise: what was kept is made again then


def tokenizer_file(model: Path, override: Path | None = None) -> Path | None:
    """The tokenizer.json of a model directory or .gguf file; None for a directory without one.

    override  a directory, tokenizer.json or .gguf file to take it from instead
    That of a .gguf file may be still to be written, by keep_tokenizer().
    """
    source = override or model
    if source.is_dir():
        file = source / "tokenizer.json"
        return file if file.is_file() else None
    if source.suffix == ".json":
        return source
    identity = json.dumps([_READING, weights_identity(source)])
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return cache_folder() / "tokenizers" / f"{source.stem}-{digest}.json"


def keep_tokenizer(file: Path, text: str) -> None:
    """Write what a tokenizer.json holds: whole, or not at all. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".partial-", delete=False) as partial:
        try:
            partial.write(text)
            partial.close()
            os.replace(partial.name, file)
        except BaseException:
            os.unlink(partial.name)
            raise
    by_age = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in by_age[KEPT_FILES:]:
        old.unlink(missing_ok=True)
