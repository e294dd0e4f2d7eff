"""From the name of a model to its local files; what is not here yet is downloaded once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from legato.core.errors import ConfigError, ModelError
from legato.modelfiles import hub
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.wheel import DownloadError
from legato.modelfiles.hf_config import read_sampling_defaults
from legato.modelfiles.known_models import CATALOG, CatalogEntry, HubModel
from legato.modelfiles.weight_files import PICKLED_REMEDY, PICKLED_SUFFIXES, model_name

MAX_SHOWN_CHARS = 80  # of a name

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that is on this machine.

    path            a directory in Hugging Face layout, or a .gguf file
    default_params  fields of SamplingParams: the catalog's, or those of the folder's generation_config.json
    """

    name: str
    path: Path
    default_params: dict[str, float] = field(default_factory=dict)


def resolve(model: str, *, revision: str | None = None, report: Report | None = None) -> ModelFiles:
    """Find a model's files, downloading them when this machine lacks them.

    model   a directory, a .gguf file, a catalog name, or a hub name like org/name, whichever it is first
    report  called with plain lines about a download
    Raises ModelError when there is no such model or it cannot be had; ConfigError for a useless revision.
    """
    files = _resolve(model, revision, report or _say_nothing, may_download=True)
    if (hidden := _hidden(model)) and files.path.is_dir() and not (files.path / "config.json").is_file():
        raise ModelError(f"{files.path} has no config.json{hidden}")
    return files


def entries() -> tuple[CatalogEntry, ...]:
    """The models known by name."""
    return CATALOG


def local(model: str) -> Path | None:
    """The file or directory here that has that name; None where there is none.

    Raises ModelError for a name that no model can have, or a path that may not be looked at.
    """
    if not model.strip():
        raise ModelError("a model's name is empty: name a model, or leave it out for the default")
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:  # RuntimeError: ~nobody-of-this-machine
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"no model {_shown(model)}: {reason}") from error


def find_entry(model: str) -> CatalogEntry | None:
    """The catalog's, unless a file or directory here has that name."""
    if local(model) is not None:
        return None
    return next((entry for entry in CATALOG if entry.name == model), None)


def hub_name(model: str) -> str | None:
    """The name on the hub of a model that is known by its short name or by that; None of another."""
    entry = find_entry(model)
    if entry is not None:
        return entry.source.name if isinstance(entry.source, HubModel) else None
    return model if local(model) is None and hub.is_hub_name(model) else None


def served_name(model: str) -> str:
    """The name under which a model is served unless told otherwise; looks at no file's content."""
    path = local(model)
    if path is not None and path.is_dir():
        return path.resolve().name
    return model_name(Path(model)) if model.endswith(".gguf") else model


def pull(name: str, *, revision: str | None = None, report: Report | None = None) -> ModelFiles:
    """Bring a catalog or hub model onto this machine, or say that it is here; see resolve."""
    if report is not None and where(name, revision=revision) is not None:
        report(f"{name} is here already")
    return resolve(name, revision=revision, report=report)


def verify(model: str, files: ModelFiles) -> bool:
    """Read a model's files again and compare their hashes with those published; False when none are known.

    Raises ModelError for a file that was changed or damaged.
    """
    entry = find_entry(model)
    try:
        if entry is not None and isinstance(entry.source, PackagedFile):
            entry.source.verify(files.path)
            return True
        return hub_name(model) is not None and hub.verify(files.path) > 0
    except ModelError as error:
        again = f"legato models remove {model} && legato models pull {model}"
        raise ModelError(f"{error}. This brings it anew: {again}") from error


def where(name: str, *, revision: str | None = None) -> Path | None:
    """Where a model's files are; None when they would have to be downloaded first."""
    try:
        return _resolve(name, revision, _say_nothing, may_download=False).path
    except hub.AbsentError:
        return None


def _resolve(model: str, revision: str | None, report: Report, *, may_download: bool) -> ModelFiles:
    entry, path = find_entry(model), local(model)
    if (on_hub := hub_name(model)) is not None:
        if entry is not None:
            report = _with_licence(entry, report)
        folder = hub.find(on_hub, revision, report, may_download=may_download, known_as=model)
        return ModelFiles(model, folder, read_sampling_defaults(folder))
    if revision is not None:
        raise ConfigError(f"revision {revision!r} applies to hub models alone, and {model!r} is none")
    if entry is not None and isinstance(entry.source, PackagedFile):
        return _packaged(entry, entry.source, report, may_download=may_download)
    if path is None:
        raise ModelError(f"no model {_shown(model)}: {_absence(model)}")
    if path.is_dir():
        return ModelFiles(served_name(model), path, read_sampling_defaults(path))
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(served_name(model), path)
    reason = f": {PICKLED_REMEDY}" if path.suffix in PICKLED_SUFFIXES else ""
    raise ModelError(f"{path} is neither a directory nor a .gguf file{reason or _hidden(model)}")


def _hidden(model: str) -> str:
    """What to say beside it where something useless here goes before the catalog's model of that name."""
    if local(model) is None or all(entry.name != model for entry in CATALOG):
        return ""
    return f"; it lies here and hides the catalog's {model}: rename it, or work in another directory"


def _shown(model: str) -> str:
    """A name of nothing, in quotes, cut where it is long."""
    return repr(model if len(model) <= MAX_SHOWN_CHARS else f"{model[:MAX_SHOWN_CHARS]}…")


def _absence(model: str) -> str:
    """Why there is no such model, with what was probably meant."""
    if "," in model:
        return "legato serve alone takes several, and parts LEGATO_MODEL at commas; name one: --model MODEL"
    if model.endswith(".gguf") or model.startswith(("./", "../", "/", "~")):
        return "there is no such file or directory"
    known = [entry.name for entry in CATALOG]
    near = [name for name in known if name.startswith(model.lower())] if model else []
    near = near or get_close_matches(model.lower(), known, n=1)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return (
        "it is no file or directory here, no hub name like org/name, and the catalog holds only"
        f" {', '.join(known)}{hint}"
    )


def _packaged(entry: CatalogEntry, source: PackagedFile, report: Report, *, may_download: bool) -> ModelFiles:
    if entry.path is None:
        if not may_download:
            raise hub.AbsentError(f"{entry.name} is not on this machine")
        from legato.modelfiles.download.fetching import fetch  # its imports take longer than a start may

        try:
            fetch(source, entry.target, lambda: entry.path is not None, _with_licence(entry, report))
        except DownloadError as error:
            raise ModelError(
                f"model {entry.name} is not on this machine and cannot be downloaded: {error}\n"
                f"With a network, this brings it: legato models pull {entry.name}"
            ) from error
    return ModelFiles(entry.name, entry.target, dict(entry.default_params))


def _with_licence(entry: CatalogEntry, report: Report) -> Report:
    """Tells the licence before anything else."""
    told: list[str] = []

    def tell(line: str) -> None:
        if not told:
            told.append(line)
            report(f"{entry.name} is under this licence: {entry.licence}, {entry.licence_url}")
        report(line)

    return tell


def _say_nothing(line: str) -> None:
    pass
