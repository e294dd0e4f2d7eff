"""Models of the Hugging Face hub: from the local cache, else downloaded by huggingface_hub."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError
from legato.modelfiles.weight_files import SAFETENSORS, files_of, layout_of

NEEDED_FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model")
BIN_FILES = ("pytorch_model.bin", "pytorch_model-*.bin")  # for a model that has no .safetensors files
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class AbsentError(ModelError):
    """The model's files are not on this machine, and downloading was not allowed."""


def is_hub_name(model: str) -> bool:
    return _HUB_NAME.fullmatch(model) is not None and not model.endswith(".gguf")


def find(name: str, revision: str | None, report: Callable[[str], None], *, may_download: bool) -> Path:
    """The directory of a hub model; HF_HOME, HF_HUB_CACHE, HF_TOKEN and HF_HUB_OFFLINE are honoured.

    Raises AbsentError when it is not in the cache and may not be downloaded, ModelError when it cannot be.
    """
    local = _snapshot(name, revision, local_files_only=True)
    if local is not None and _is_complete(local):
        return local
    if not may_download:
        raise AbsentError(f"{name} is not in the Hugging Face cache")
    report(f"downloading {name} from the Hugging Face hub")
    folder = _snapshot(name, revision, local_files_only=False)
    if folder is not None and layout_of(folder) is not SAFETENSORS:
        folder = _snapshot(name, revision, local_files_only=False, also=BIN_FILES)
    if folder is None or not _is_complete(folder):
        raise ModelError(
            f"{name} on the Hugging Face hub has no config.json with .safetensors files or pytorch_model.bin"
        )
    report(f"stored {folder}")
    return folder


def _snapshot(
    name: str, revision: str | None, *, local_files_only: bool, also: tuple[str, ...] = ()
) -> Path | None:
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed
    from huggingface_hub.errors import LocalEntryNotFoundError

    settings: dict[str, Any] = {"revision": revision, "allow_patterns": [*NEEDED_FILES, *also]}
    settings["ignore_patterns"] = ["*/*"]  # folders hold other formats of the same model
    try:
        return Path(snapshot_download(name, local_files_only=local_files_only, **settings))
    except Exception as error:  # its own errors, those of its HTTP library, and the system's
        if local_files_only and isinstance(error, LocalEntryNotFoundError):
            return None
        at = f" at revision {revision}" if revision else ""
        again = f" --revision {revision}" if revision else ""
        raise ModelError(
            f"model {name}{at} is not in the Hugging Face cache and cannot be downloaded: {_reason(error)}."
            f" After that, this brings it: legato models pull {name}{again}"
        ) from error


def _reason(error: Exception) -> str:
    """What is wrong with the hub or the way to it, and the remedy, in one line."""
    from huggingface_hub import errors

    remedies: tuple[tuple[type[Exception], str], ...] = (  # subclasses stand before their bases
        (errors.GatedRepoError, "its authors ask for consent: give it on huggingface.co, and set HF_TOKEN"),
        (errors.RepositoryNotFoundError, "the hub has no such model: correct its name, or set HF_TOKEN"),
        (errors.RevisionNotFoundError, "the hub has no such revision of it: name another one"),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE forbids it: unset that"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached: connect this machine to it"),
    )
    for kind, remedy in remedies:
        if isinstance(error, kind) or isinstance(error.__cause__, kind):
            return remedy
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _is_complete(folder: Path) -> bool:
    """Whether settings and all weight files are there, and no download into the cache was cut off."""
    blobs = folder.parent.parent / "blobs"
    if not (folder / "config.json").is_file() or any(blobs.glob("*.incomplete")):
        return False
    layout = layout_of(folder)
    try:
        return layout is not None and all(file.is_file() for file in files_of(folder, layout))
    except ModelError:  # an index cut off
        return False
