"""What would go wrong with a fault of ours in scheduler, K/V accounts or bookkeeping is seen."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUGS = sorted((Path(__file__).parent / "bugs").glob("*.patch"))
# An editable install may find modules by a hook of its own, before any path.
FIND = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
import legato
assert legato.__file__.startswith(sys.argv[1]), legato.__file__
from legato.sim.scenario import random_scenario
from legato.sim.world import SimulationError, simulate
for seed in range(2000):
    try:
        simulate(random_scenario(seed))
    except SimulationError as error:
        raise SystemExit(f"found: {error}")
"""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.stem)
def test_planted_bug_is_found(bug: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "legato", tmp_path / "legato", ignore=shutil.ignore_patterns("*.so", "csrc"))
    subprocess.run(["git", "apply", "--verbose", str(bug)], cwd=tmp_path, check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", FIND, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
    )
    assert found.returncode == 1
    assert found.stderr.startswith("found: step"), found.stderr


def test_at_least_ten_bugs_are_planted() -> None:
    assert len(BUGS) >= 10
