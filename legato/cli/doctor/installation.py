"""What is installed: versions, the kernels and who computes by default, models."""

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import legato
from legato.core.config import DEFAULT_MODEL, EngineConfig
from legato.core.errors import ConfigError
from legato.core.settings import resolve_settings
from legato.kernels.library import ISA_VARIABLE, NoKernels, find_extension, instruction_sets, open_device
from legato.modelfiles import catalog
from legato.modelfiles.folders import cache_folder, packed_folder


def lines() -> Iterator[tuple[str, str]]:
    yield "legato", f"{legato.__version__}, in {Path(legato.__file__).parent}"
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield from _dependencies()
    missing = find_extension()
    yield "kernels", missing.reason if missing else "built"
    yield "instruction sets", _instruction_sets()
    yield "backend", _backend(missing)
    yield "cache folder", str(cache_folder())
    yield "packed weights", _packed_weights(packed_folder())
    for entry in catalog.entries():
        path = entry.path
        if path is not None or entry.name == DEFAULT_MODEL:
            absent = f"not here; this brings it: legato models pull {entry.name}"
            yield f"model {entry.name}", absent if path is None else str(path)


def _dependencies() -> Iterator[tuple[str, str]]:
    """The version of each package of the base install."""
    try:
        requirements = metadata.requires("legato") or []
    except metadata.PackageNotFoundError:
        yield "packages", "unknown, for legato is not installed; in a checkout this does it: pip install -e ."
        return
    for requirement in sorted(each for each in requirements if "extra ==" not in each):
        name = re.split(r"[^\w.-]", requirement)[0]
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, f"missing; this brings it: {sys.executable} -m pip install '{requirement}'"


def _instruction_sets() -> str:
    """Those of this machine, and which one computes, for what reason."""
    possible = instruction_sets()
    if not possible:
        return "none without kernels"
    try:
        device = open_device(1)
    except ConfigError as error:
        return str(error)
    assert not isinstance(device, NoKernels)
    reason = (
        f"as {ISA_VARIABLE} says" if os.environ.get(ISA_VARIABLE) else "the best that this machine can run"
    )
    return f"{', '.join(possible)}; {device.isa} computes, {reason}"


def _packed_weights(folder: Path) -> str:
    """What is kept for faster starts."""
    sizes = [path.stat().st_size for path in folder.glob("*.packed")]
    return f"{len(sizes)} files, {sum(sizes) / 2**20:.0f} MiB, in {folder}; may be deleted"


def _backend(missing: NoKernels | None) -> str:
    """What computes where no flag says otherwise."""
    try:
        settings = resolve_settings(EngineConfig, {})
    except ConfigError as error:
        return f"none: {error}"
    wanted = settings.value.backend
    if wanted == "cpu" and missing:
        return "none: LEGATO_BACKEND=cpu, and there are no kernels"
    chosen = "reference" if missing or wanted == "reference" else "cpu"
    what = "numpy, many times slower than the kernels" if chosen == "reference" else "the C++ kernels"
    return f"{chosen}: {what}" + (", as LEGATO_BACKEND says" if wanted == chosen else "")
