"""Models of the Hugging Face hub: from the local cache, else downloaded by huggingface_hub."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError
from legato.modelfiles.weight_files import SAFETENSORS, files_of, layout_of

NEEDED_FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model")
BIN_FILES = ("pytorch_model.bin", "pytorch_model-*.bin")  # for a model that has no .safetensors files
MAX_NAME_CHARS = 96  # the hub's own limit
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class AbsentError(ModelError):
    """The model's files are not on this machine, and downloading was not allowed."""


class DamagedError(ModelError):
    """A file in the cache is not the one that the hub has."""

    def __init__(self, file: Path, found: str, expected: str) -> None:
        super().__init__(f"{file} is damaged: its hash is {found}, and {expected} was published")
        self.file = file


def is_hub_name(model: str) -> bool:
    is_one = len(model) <= MAX_NAME_CHARS and _HUB_NAME.fullmatch(model) is not None
    return is_one and not model.endswith(".gguf")


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
    _verify_download(folder)
    report(f"stored {name}")
    return folder


def cached(name: str) -> Path | None:
    """The directory of the main revision of a model in the cache; None where it is not, or not whole."""
    repository = repository_folder(name)
    try:
        folder = repository / "snapshots" / (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return folder if _is_complete(folder) else None


def cached_names() -> list[str]:
    """The models in the cache, whole or not."""
    prefix = "models--"
    folders = _cache_folder().glob(prefix + "*")
    return sorted(folder.name.removeprefix(prefix).replace("--", "/", 1) for folder in folders)


def repository_folder(name: str) -> Path:
    """Where the cache keeps all revisions of a model."""
    return _cache_folder() / f"models--{name.replace('/', '--')}"


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def verify(folder: Path) -> int:
    """Compare the files of a directory in the cache with the hashes they are named by; how many could be.

    A large file is named by its SHA-256, another by the hash that git gives it. Files that the cache holds
    without links cannot be told. Raises DamagedError.
    """
    links = [link for link in folder.iterdir() if link.is_symlink()]
    blobs = [(link, link.resolve()) for link in links if len(link.resolve().name) in _HASHES]
    for link, blob in blobs:
        found = _HASHES[len(blob.name)](blob)
        if found != blob.name:
            raise DamagedError(link, found, blob.name)
    return len(blobs)


def _verify_download(folder: Path) -> None:
    try:
        verify(folder)
    except DamagedError as error:
        error.file.resolve().unlink()
        error.file.unlink()
        (folder / "config.json").unlink(missing_ok=True)  # without it the folder is asked for again
        raise ModelError(f"{error}. It was deleted: run the same command again") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _git_hash(file: Path) -> str:
    data = file.read_bytes()  # of a few megabytes: git does not hold weights
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


_HASHES = {64: _sha256, 40: _git_hash}  # by the length of a file's name


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
