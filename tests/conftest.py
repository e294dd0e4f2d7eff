"""Numpy's BLAS gets one thread, as in the engine process; set before any test imports numpy."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a tokenizer and a chat template."""
    from tests.tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
