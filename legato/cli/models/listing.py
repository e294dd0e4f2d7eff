"""`legato models list`: what has a short name, and what lies in the cache of the Hugging Face hub."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from legato.core.config import DEFAULT_POOL_BYTES
from legato.modelfiles import catalog, hub
from legato.modelfiles.fingerprint import weights_files
from legato.modelfiles.known_models import CatalogEntry, HubModel

PROCESSES_BYTES = 250_000_000  # of the server and its engine, at most
PACKAGE_INDEX = "package index"
RIGHT_ALIGNED = ("DISK", "MEMORY")
ABOUT_MEMORY = f"""\
MEMORY is what serving takes: the weights, a K/V pool of {DEFAULT_POOL_BYTES / 1e9:.1f} GB (less where memory
is short; --kv-cache-memory-bytes sets it) and {PROCESSES_BYTES / 1e9:.2f} GB for the processes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the list.

    source        where it comes from: an index of packages, or its name on the hub
    disk_bytes    of its weights; about, where it is not here
    memory_bytes  what serving it takes
    licence       None where it is not known without asking the hub
    """

    name: str
    is_here: bool
    source: str
    disk_bytes: int
    memory_bytes: int
    licence: str | None = None
    licence_url: str | None = None
    note: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON array, with sizes in bytes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    known = [row_of(entry) for entry in catalog.entries()]
    others = cached_rows({row.source for row in known})
    if arguments.json:
        print(json.dumps([asdict(row) for row in (*known, *others)], indent=2))
        return 0
    print("\n".join(catalog_lines(known)))
    if others:
        print("\n".join(["", "In the Hugging Face cache, too:", "", *cache_lines(others)]))
    return 0


def row_of(entry: CatalogEntry) -> Row:
    path, source = entry.path, entry.source
    disk_bytes = source.num_bytes if path is None else size_of(path)
    return Row(
        name=entry.name,
        is_here=path is not None,
        source=source.name if isinstance(source, HubModel) else PACKAGE_INDEX,
        disk_bytes=disk_bytes,
        memory_bytes=serving_bytes(disk_bytes),
        licence=entry.licence,
        licence_url=entry.licence_url,
        note=entry.note,
    )


def cached_rows(known: set[str]) -> list[Row]:
    """Models of the hub that are here, apart from those with a short name."""
    paths = {name: hub.cached(name) for name in hub.cached_names() if name not in known}
    sizes = {name: size_of(path) for name, path in paths.items() if path is not None}
    return [Row(name, True, name, size, serving_bytes(size)) for name, size in sizes.items()]


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in weights_files(path))


def serving_bytes(weight_bytes: int) -> int:
    """The kernels keep weights about as large as the file does."""
    return weight_bytes + DEFAULT_POOL_BYTES + PROCESSES_BYTES


def catalog_lines(rows: Sequence[Row]) -> list[str]:
    cells = [("NAME", "HERE", "DISK", "MEMORY", "LICENCE", "FROM")]
    cells += [
        (
            row.name,
            "yes" if row.is_here else "no",
            in_words(row.disk_bytes),
            in_words(row.memory_bytes),
            row.licence or "",
            row.source,
        )
        for row in rows
    ]
    notes = [f"{row.name}: {row.note}" for row in rows if row.note]
    return [*table(cells), "", ABOUT_MEMORY, *notes]


def cache_lines(rows: Sequence[Row]) -> list[str]:
    cells = [("NAME", "DISK", "MEMORY")]
    cells += [(row.name, in_words(row.disk_bytes), in_words(row.memory_bytes)) for row in rows]
    return table(cells)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns; the first row names them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in RIGHT_ALIGNED else cell.ljust(width)
            for cell, width, name in zip(row, widths, rows[0], strict=True)
        ).rstrip()
        for row in rows
    ]


def in_words(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
