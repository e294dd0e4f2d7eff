"""The control groups that this process is in: where Linux keeps the limits of containers and services."""

from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def own_groups(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Path]:
    """Directories of the groups that bound this process, of either version: its own and those above.

    A container may see its own group as the root of the tree, so the roots are always among them.
    Empty directories and such as are not there do no harm: a reader finds no limit in them.
    """
    roots = {"": cgroups, controller: cgroups / controller}  # version 2 names no controller
    found = list(roots.values())
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, place = line.split(":", 2)
        for name, root in roots.items():
            if name in controllers.split(","):
                parts = [part for part in Path(place).parts if part not in ("/", "..")]
                found += [root.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    return found


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines() if line.count(":") >= 2]
    except OSError:  # no such file, as on macOS
        return []
