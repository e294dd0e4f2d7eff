"""Where a model's tokenizer.json is; where one is kept that was made of what else a model brings."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from legato.modelfiles.fingerprint import weights_identity
from legato.modelfiles.folders import tokenizers_folder

KEPT_FILES = 16  # of all models; the ones that were written first are deleted
PARTS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))  # the first that is whole
_SETTINGS = ("added_tokens.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
_READING = 2  # raise it when a tokenizer is read otherwise: what was kept is made again then


def tokenizer_parts(folder: Path) -> list[Path]:
    """The files that a folder's tokenizer is read from; none where it has no tokenizer that can be read."""
    for names in PARTS:
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return files
    return []


def tokenizer_file(model: Path, override: Path | None = None) -> Path | None:
    """The tokenizer.json of a model directory or .gguf file; None for a directory without a tokenizer.

    override  a directory, tokenizer.json or .gguf file to take it from instead
    One that is made of something else may be still to be written, by keep_tokenizer().
    """
    source = override or model
    if source.suffix == ".json" and not source.is_dir():
        return source
    origin: Any
    if source.is_dir():
        parts = tokenizer_parts(source)
        if not parts or parts[0].name == "tokenizer.json":
            return parts[0] if parts else None
        settings = [file for name in _SETTINGS if (file := source / name).is_file()]
        origin = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in parts + settings]
    else:
        origin = weights_identity(source)
    identity = json.dumps([_READING, origin])
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return tokenizers_folder() / f"{source.stem}-{digest}.json"


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
