"""A minute of the soak: nothing that a client or the server's accounts can see goes wrong."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.conftest import end_server, start_server
from tests.soak.__main__ import SETTINGS, accounts, at_rest
from tests.soak.load import Load


@pytest.mark.slow
def test_every_answer_is_right_and_ends_once_under_load_with_faults(tmp_path: Path, tiny_model: Path) -> None:
    server = start_server(tmp_path, tiny_model, app=None, **SETTINGS)
    try:
        load = Load(server, seed=0)
        asyncio.run(load.learn())
        asyncio.run(load.run(40))
        at_rest(server, load)
        assert load.faults + accounts(server) == []
        assert {"stream finished", "plain finished", "engine SIGKILL"} <= load.outcomes.keys()
    finally:
        end_server(server)
