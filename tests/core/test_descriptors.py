"""A process takes as many descriptors as it may have."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from legato.core.descriptors import max_connections, raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}))
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], max_connections({hard}))
"""


@pytest.mark.parametrize(("hard", "connections"), [(100, 1), (1000, 872)])
def test_soft_limit_is_raised_to_the_hard_one(hard: int, connections: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(hard=hard)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [str(hard), str(hard), str(connections)]
