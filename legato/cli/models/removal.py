"""`legato models remove`: give back the disk that a pulled model takes."""

import argparse
import glob
import shutil
import sys
from pathlib import Path

from legato.core.errors import ModelError
from legato.modelfiles import catalog, hub
from legato.modelfiles.folders import packed_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name of the list, or a hub name like org/name")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Delete a model, its parts and packed weights included. Raises ModelError for one that is not ours."""
    name = arguments.model
    num_bytes = remove(name)
    if not num_bytes:
        raise ModelError(f"{name} is not on this machine: there is nothing to remove")
    print(f"removed {name}: {num_bytes / 1e6:.0f} MB", file=sys.stderr)
    return 0


def remove(name: str) -> int:
    """The bytes that are free now. A server that has the model goes on with it."""
    from legato.modelfiles.download.fetching import LOCK, exclusive  # HTTP, which the list need not wait for

    entry, on_hub = catalog.find_entry(name), catalog.hub_name(name)
    if on_hub is not None:
        repository = hub.repository_folder(on_hub)
        return sum(map(_delete_packed, repository.glob("snapshots/*"))) + _delete(repository)
    if entry is None:
        raise ModelError(f"{name} is neither in the catalog nor a model of the hub: legato did not bring it")
    folder = entry.target.parent
    if not folder.is_dir():
        return 0
    with exclusive(folder / LOCK, lambda: print(f"waiting for who downloads {name}", file=sys.stderr)):
        files = [each for each in folder.iterdir() if each.name != LOCK]
        return _delete_packed(entry.target) + sum(map(_delete, files))


def _delete_packed(weights: Path) -> int:
    """What starts have kept of a file or folder of weights, by its name; another of that name packs again."""
    return sum(map(_delete, packed_folder().glob(f"{glob.escape(weights.stem)}-*.packed")))


def _delete(path: Path) -> int:
    """The bytes that a file or folder took; 0 for what is not there."""
    if not path.is_dir():
        if not path.exists():
            return 0
        num_bytes = path.lstat().st_size
        path.unlink()
        return num_bytes
    files = [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    num_bytes = sum(each.stat().st_size for each in files)
    shutil.rmtree(path)
    return num_bytes
