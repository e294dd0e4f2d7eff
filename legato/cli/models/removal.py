"""`legato models remove`: give back the disk that a pulled model takes."""

import argparse
import glob
import os
import shutil
import sys
from pathlib import Path, PurePath

from legato.core.errors import ModelError, brief
from legato.modelfiles import catalog, hub
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.folders import packed_folder, tokenizers_folder
from legato.modelfiles.known_models import CatalogEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name of the list, or a hub name like org/name")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Delete a model and what was made of it. Raises ModelError for one that is not ours."""
    name = arguments.model
    try:
        num_bytes = remove(name)
    except OSError as error:
        raise ModelError(f"{name} cannot be removed: {brief(error)}") from error
    if not num_bytes:
        raise ModelError(f"{name} is not on this machine: there is nothing to remove")
    print(f"removed {name}: {num_bytes / 1e6:.0f} MB", file=sys.stderr)
    return 0


def remove(name: str) -> int:
    """The bytes that are free now. A server that has the model goes on with it.

    Only what legato or the hub brought is deleted. Raises ModelError for a folder that is a link to another:
    what is there may be its owner's.
    """
    from legato.modelfiles.download.fetching import LOCK, exclusive  # HTTP, which the list need not wait for

    entry, on_hub = catalog.find_entry(name), catalog.hub_name(name)
    if on_hub is not None:
        repository = hub.repository_folder(on_hub)
        _refuse_link(repository)
        return sum(map(_delete_kept, repository.glob("snapshots/*"))) + _delete(repository)
    if entry is None:
        raise ModelError(f"{name} is neither in the catalog nor a model of the hub: legato did not bring it")
    folder = entry.target.parent
    _refuse_link(folder)
    if not folder.is_dir():
        return _delete(folder) if folder.is_symlink() else 0
    with exclusive(folder / LOCK, lambda: print(f"waiting for who downloads {name}", file=sys.stderr)):
        return _delete_kept(entry.target) + sum(map(_delete, _brought(entry)))


def _brought(entry: CatalogEntry) -> set[Path]:
    """The files and folders of a package that were brought here; see fetch."""
    from legato.modelfiles.download.fetching import PARTS_FOLDER

    assert isinstance(entry.source, PackagedFile)
    folder = entry.target.parent
    papers = {PurePath(pattern).name for wheel in entry.source.wheels for pattern in wheel.papers}
    files = {entry.target}.union(*map(folder.glob, papers))
    return {folder / PARTS_FOLDER} | {file for file in files if file.is_symlink() or not file.is_dir()}


def _refuse_link(folder: Path) -> None:
    """One that leads nowhere may go like a file."""
    if folder.is_symlink() and folder.is_dir():
        raise ModelError(
            f"{folder} is a link to {folder.resolve()}, which may hold files of your own: nothing was"
            " removed. Delete what is there and the link yourself"
        )


def _delete_kept(weights: Path) -> int:
    """What starts have made of weights, by their name; others of that name make it anew."""
    stem = glob.escape(weights.stem)
    packed, tokenizers = packed_folder().glob(f"{stem}-*.packed"), tokenizers_folder().glob(f"{stem}-*.json")
    return sum(map(_delete, (*packed, *tokenizers)))


def _delete(path: Path) -> int:
    """The bytes that a file or folder took; 0 for what is not there. Of a link, only the link goes."""
    if path.is_symlink() or not path.is_dir():
        if not os.path.lexists(path):
            return 0
        num_bytes = path.lstat().st_size
        path.unlink()
        return num_bytes
    files = [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    num_bytes = sum(each.stat().st_size for each in files)
    shutil.rmtree(path)
    return num_bytes
