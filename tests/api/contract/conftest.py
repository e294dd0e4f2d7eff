"""One server for all tests of the contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.contract.live import Live, serve


@pytest.fixture(scope="package")
def live(tiny_model: Path) -> Iterator[Live]:
    with serve(tiny_model) as opened:
        yield opened
