"""Opens the compiled extension with an instruction set and threads, or says why there is none."""

import hashlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from legato.core.errors import ConfigError
from legato.kernels.threads import num_usable_cores

if TYPE_CHECKING:
    from legato.kernels._native import Device

EXTENSION = "legato.kernels._native"
ISA_VARIABLE = "LEGATO_ISA"
ISA_NAMES = ("avx512_vnni_bf16", "avx512", "avx2", "neon", "scalar")  # of all machines
PATH_VARIABLE = "LEGATO_NATIVE_PATH"  # another build of the extension, say with sanitizers


@dataclass(frozen=True, slots=True)
class NoKernels:
    """Why the compiled kernels cannot be used, and what to do about it: a text fit for a user."""

    reason: str


def open_device(num_threads: int | None = None, isa: str | None = None) -> "Device | NoKernels":
    """What computes: threads and an instruction set.

    num_threads  by default the physical cores that this process may use
    isa          by default LEGATO_ISA, or the best that the machine has
    Raises ConfigError for an instruction set that there is not, or that this machine cannot run.
    """
    missing = find_extension()
    if missing:
        return missing
    from legato.kernels import _native

    possible = _native.instruction_sets()
    name = isa or os.environ.get(ISA_VARIABLE) or possible[0]
    if name not in ISA_NAMES:
        raise ConfigError(
            f"{ISA_VARIABLE}={name}: there is no instruction set of that name; expected one of"
            f" {', '.join(ISA_NAMES)}"
        )
    if name not in possible:
        raise ConfigError(
            f"{ISA_VARIABLE}={name}: this machine cannot run that instruction set; possible here:"
            f" {', '.join(possible)}"
        )
    return _native.Device(name, num_threads or num_usable_cores())


def instruction_sets() -> tuple[str, ...]:
    """Names of the sets that this machine can run, best first; none without the extension."""
    if find_extension():
        return ()
    from legato.kernels import _native

    return tuple(_native.instruction_sets())


@cache
def build_id() -> str:
    """Names this build of the extension: another one may pack weights otherwise."""
    from legato.kernels import _native

    with Path(_native.__file__).open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    return digest.hexdigest()


def find_extension() -> NoKernels | None:
    """Make `legato.kernels._native` importable; None when it is.

    Python that runs in a checkout takes `legato` from there, while `pip install .` has put the extension
    among the installed files: then it is loaded from those.
    """
    if EXTENSION in sys.modules:
        return None
    forced = os.environ.get(PATH_VARIABLE)
    is_beside_us = not forced and importlib.util.find_spec(EXTENSION) is not None
    path = Path(forced) if forced else _installed_extension()
    try:
        if is_beside_us:
            importlib.import_module(EXTENSION)
        elif path:
            _load(path)
        else:
            return NoKernels(
                "legato was installed without its compiled kernels, as it is where there is no C++ compiler."
                " Install a compiler and the headers of Python (on Debian: apt-get install g++ python3-dev),"
                " then legato again (in a checkout: pip install --force-reinstall --no-deps .)"
            )
    except ImportError as error:
        return NoKernels(f"the compiled kernels of legato cannot be loaded: {error}. Install legato again")
    return None


def _load(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(EXTENSION, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[EXTENSION] = module


def _installed_extension() -> Path | None:
    from importlib import metadata  # a tenth of a second, and rarely needed

    try:
        files = metadata.files("legato") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.match("legato/kernels/_native.*.so"):
            return Path(str(file.locate()))
    return None
