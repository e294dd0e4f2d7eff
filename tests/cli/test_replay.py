"""`legato replay`: a recorded engine's decisions again, also of one that was killed; a change is told."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.observability.recording.file import older_half, read_recording
from legato.observability.recording.frames import Planned
from legato.scheduler.admission import Admission
from tests.engine.runs import build_engine, run, seeded_requests
from tests.fakes import random_model

MODEL = random_model(seed=3, num_layers=1, vocab_size=512)
ROOT = Path(__file__).parent.parent.parent

KILLED = """
import os, signal, sys
from legato.ipc.messages import AddRequest
from tests.cli.test_replay import MODEL, build_engine, seeded_requests
core = build_engine(MODEL, record=sys.argv[1], num_pages=12, max_num_seqs=6).core
for request in seeded_requests(40, 512):
    core.add(request)
for _ in range(60):
    core.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def record(path: Path, **settings: object) -> None:
    result = run(
        build_engine(MODEL, record=str(path), num_pages=12, max_num_seqs=6, **settings),
        seeded_requests(40, 512),
    )
    assert result.num_preemptions > 0
    assert result.prefix_hits > 0


def num_plans(path: Path) -> int:
    return sum(isinstance(frame, Planned) for frame in read_recording(path))


@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
def test_busy_run_is_decided_the_same_way_again(
    tmp_path: Path, batching: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r"
    record(path, batching=batching)
    assert main(["replay", str(path)]) == 0
    assert num_plans(path) > 50
    assert capsys.readouterr().out == f"{path}: {num_plans(path)} steps, the same decisions\n"


def test_both_halves_are_replayed_each_from_its_own_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r"
    record(path, record_bytes=8_000)
    older = older_half(path)
    assert path.stat().st_size + older.stat().st_size < 16_000
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{older}: {num_plans(older)} steps, the same decisions\n"
        f"{path}: {num_plans(path)} steps, the same decisions\n"
    )


def test_recording_of_a_killed_engine_is_replayed_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, env=os.environ, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert num_plans(path) == 60
    record(path)  # the engine that takes over
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: {num_plans(path)} steps, the same decisions\n"


def test_changed_scheduler_is_told_with_both_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    record(path)
    monkeypatch.setattr(Admission, "fits", lambda self, request, half_prefilled: False)
    assert main(["replay", str(path)]) == 1
    told, recorded, replayed = capsys.readouterr().err.splitlines()
    assert told.startswith(f"legato: error: {path}: step 1 is decided otherwise")
    assert recorded.startswith("  recorded: tokens {#0: ")
    assert replayed == "  replayed: tokens {}, preempted []"


def test_what_is_no_recording_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r").write_bytes(b"GGUF" * 99)
    assert main(["replay", str(tmp_path / "r")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
