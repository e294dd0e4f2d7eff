"""What every test finds.

Numpy's BLAS gets one thread, as in the engine process, and torch one too: several would wait for those of
other tests. Set before any test imports them. Weights are packed into a folder of the run, so that those of
test models do not take the place of what the user has kept. No example of hypothesis has a deadline: a busy
machine is no fault.
"""

import logging
import os
import signal

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell starts what is in the background deaf to Ctrl-C, and the servers of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _packed_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_PACKED_FOLDER", str(tmp_path_factory.mktemp("packed")))
        yield


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The logging that a command sets up ends with its test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    for added in set(root.handlers).difference(handlers):
        root.removeHandler(added)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a tokenizer and a chat template."""
    from tests.tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def quick_gguf() -> Iterator[None]:
    """transformers reads .gguf files' metadata in a third of the time: looks at a mapped array are slow."""
    import gguf
    import numpy as np

    class Reader(gguf.GGUFReader):
        def _build_fields(self, offs: int, count: int) -> int:
            self.data = self.data.view(np.ndarray)
            return super()._build_fields(offs, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", Reader)
        yield
