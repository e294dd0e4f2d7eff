"""Models of the Hugging Face hub: from the local cache, else downloaded by huggingface_hub."""

import fcntl
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError
from legato.modelfiles.tokenizer_file import tokenizer_parts
from legato.modelfiles.weight_files import SAFETENSORS, files_of, layout_among, layout_of

NEEDED_FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model")
BIN_FILES = ("pytorch_model.bin", "pytorch_model-*.bin")  # for a model that has no .safetensors files
MAX_NAME_CHARS = 96  # the hub's own limit
UNREACHABLE = "the hub cannot be reached: connect this machine to it"
# By name, for its client uses one HTTP library or another:
_NETWORK_ERRORS = {"ConnectionError", "Timeout", "TransportError"}
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


def find(
    name: str,
    revision: str | None,
    report: Callable[[str], None],
    *,
    may_download: bool,
    known_as: str | None = None,
) -> Path:
    """The directory of a hub model; HF_HOME, HF_HUB_CACHE, HF_TOKEN and HF_HUB_OFFLINE are honoured.

    known_as  what the user calls it, where that is not `name`
    Raises AbsentError when it is not in the cache and may not be downloaded, ModelError when it cannot be.
    """
    with _errors_told(name, revision, known_as or name):
        local = _local_snapshot(name, revision)
        if local is not None and _is_complete(local):
            return local
        if not may_download:
            raise AbsentError(f"{name} is not in the Hugging Face cache")
        report(f"downloading {name} from the Hugging Face hub")
        folder = _download(name, revision)
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
    links = [link for link in folder.iterdir() if link.is_symlink() and link.exists()]
    blobs = [(link, blob) for link in links if len((blob := _blob_of(link)).name) in _HASHES]
    for link, blob in blobs:
        found = _HASHES[len(blob.name)](blob)
        if found != blob.name:
            raise DamagedError(link, found, blob.name)
    return len(blobs)


def _blob_of(link: Path) -> Path:
    """What a link of a snapshot names; that may be a link too, to a file that several models share."""
    return link.parent / link.readlink()


def _verify_download(folder: Path) -> None:
    try:
        verify(folder)
    except DamagedError as error:
        error.file.resolve().unlink()
        _blob_of(error.file).unlink(missing_ok=True)
        error.file.unlink()
        raise ModelError(f"{error}. It was deleted: run the same command again") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _git_hash(file: Path) -> str:
    data = file.read_bytes()  # of a few megabytes: git does not hold weights
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


_HASHES = {64: _sha256, 40: _git_hash}  # by the length of a file's name


def _local_snapshot(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True, **_wanted(())))
    except LocalEntryNotFoundError:
        return None


def _download(name: str, revision: str | None) -> Path:
    """Bring what is missing. Raises ModelError for what the hub has, any error for what it cannot give.

    The hub is asked first: where it cannot be reached, snapshot_download is content with a part of a model.
    """
    from huggingface_hub import HfApi, snapshot_download

    on_hub = HfApi().model_info(name, revision=revision)
    names = {each.rfilename for each in on_hub.siblings or ()}
    layout = layout_among(names.__contains__)
    if "config.json" not in names or layout is None:
        raise ModelError(
            f"{name} on the Hugging Face hub has no config.json with .safetensors files or pytorch_model.bin"
        )
    repository = repository_folder(name)
    unfinished = _unfinished(repository / "snapshots" / str(on_hub.sha))
    repository.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    wanted = _wanted(() if layout is SAFETENSORS else BIN_FILES)
    folder = Path(snapshot_download(name, revision=revision, **wanted))
    _verify_download(folder)
    _remove_stale_parts(repository)
    if not _has_all(folder):
        raise ModelError(f"{name} came from the Hugging Face hub in part: run the same command again")
    unfinished.unlink(missing_ok=True)
    return folder


def _wanted(also: tuple[str, ...]) -> dict[str, Any]:
    """Settings of snapshot_download. Folders hold other formats of the same model."""
    return {"allow_patterns": [*NEEDED_FILES, *also], "ignore_patterns": ["*/*"]}


def _unfinished(snapshot: Path) -> Path:
    """A file that is there from the start of a download of ours until all has come.

    Between two files that were to come, a cut-off snapshot looks like one that is whole. Other programs leave
    no such file: what they brought is judged by what is there.
    """
    return snapshot.parent.parent / f".legato-unfinished-{snapshot.name}"


def _remove_stale_parts(repository: Path) -> None:
    """Delete what killed downloads left of blobs that are whole: huggingface_hub does not go on with it."""
    for part in (repository / "blobs").glob("*.incomplete"):  # HASH.incomplete, or HASH.RANDOM.incomplete
        digest = part.name.partition(".")[0]
        if part.with_name(digest).is_file():
            with suppress(OSError):  # another process holds the lock, and writes it
                _delete_alone(part, _cache_folder() / ".locks" / repository.name / f"{digest}.lock")


def _delete_alone(part: Path, lock: Path) -> None:
    """Delete a file with the lock of its writers held. Raises OSError where another has it."""
    if not lock.exists():
        part.unlink()
        return
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()


@contextmanager
def _errors_told(name: str, revision: str | None, known_as: str) -> Iterator[None]:
    """Make a ModelError with the remedy of any error."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # huggingface_hub's own errors, those of its HTTP library, and the system's
        at = f" at revision {revision}" if revision else ""
        again = f" --revision {revision}" if revision else ""
        raise ModelError(
            f"model {name}{at} is not in the Hugging Face cache and cannot be downloaded: {_reason(error)}."
            f" After that, this brings it: legato models pull {known_as}{again}"
        ) from error


def _reason(error: Exception) -> str:
    """What is wrong with the hub or the way to it, and the remedy, in one line."""
    from huggingface_hub import errors

    remedies: tuple[tuple[type[Exception], str], ...] = (  # subclasses stand before their bases
        (errors.GatedRepoError, "its authors ask for consent: give it on huggingface.co, and set HF_TOKEN"),
        (errors.RepositoryNotFoundError, "the hub has no such model: correct its name, or set HF_TOKEN"),
        (errors.RevisionNotFoundError, "the hub has no such revision of it: name another one"),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE forbids it: unset that"),
        (errors.LocalEntryNotFoundError, UNREACHABLE),
    )
    for kind, remedy in remedies:
        if isinstance(error, kind) or isinstance(error.__cause__, kind):
            return remedy
    if _NETWORK_ERRORS & {kind.__name__ for kind in type(error).__mro__}:
        return UNREACHABLE
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _is_complete(folder: Path) -> bool:
    """Whether all that the folder names is there, and nothing says that a download into it was cut off."""
    if _unfinished(folder).exists() or not _has_all(folder):
        return False
    parts = (folder.parent.parent / "blobs").glob("*.incomplete")
    return not any(parts) or bool(tokenizer_parts(folder))  # else a part may be of the tokenizer


def _has_all(folder: Path) -> bool:
    """Whether settings and all weight files are there, and each link to a needed file leads somewhere."""
    if not (folder / "config.json").is_file():
        return False
    needed = [each for each in folder.iterdir() if any(map(each.match, NEEDED_FILES))]
    layout = layout_of(folder)
    try:
        files = [] if layout is None else files_of(folder, layout)
    except ModelError:  # an index cut off
        return False
    return bool(files) and all(file.is_file() for file in (*needed, *files))
