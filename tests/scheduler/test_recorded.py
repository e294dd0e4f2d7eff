"""What a recording holds of requests: lengths and who begins like whom, but no token, id or salt."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.plan import StepOutput
from legato.executor.request_table import RequestTable
from legato.kvcache.manager import KVCacheManager
from legato.observability.recording.file import RecordingWriter, older_half, read_recording
from legato.observability.recording.frames import Aborted, AnyFrame, Arrived, Start
from legato.scheduler.policy import ContinuousBatching
from legato.scheduler.recorded import RecordedScheduler, Recorder
from tests.scheduler.driver import make_request

PAGE = 4
FIRST_ID = 0x5EC4E700  # four bytes that stand for themselves in any encoding


def recorded_scheduler(writer: Recorder) -> RecordedScheduler:
    config = SchedulerConfig(
        max_num_seqs=4,
        max_step_tokens=64,
        mixed_prefill_tokens=64,
        long_prefill_tokens=None,
        max_model_len=64,
    )
    kv = KVCacheManager(CacheConfig(num_pages=16, page_size=PAGE))
    return RecordedScheduler(
        config, ContinuousBatching(), kv, RequestTable(4), batching="continuous", recorder=writer
    )


def record(path: Path, *, max_bytes: int = 1 << 20) -> None:
    """Two requests that begin alike, and their answers."""
    writer = RecordingWriter(path, max_bytes)
    scheduler = recorded_scheduler(writer)
    for place, name in enumerate(("secret-name", "other-name")):
        prompt = [*range(FIRST_ID, FIRST_ID + 9), FIRST_ID + 100 + place]
        scheduler.add(make_request(name, prompt, 8, cache_salt="secret-salt"))
    for step in range(20):
        plan = scheduler.plan()
        scheduler.launched(plan)
        sampled = {chunk.request_id: FIRST_ID + 200 + step for chunk in plan.chunks if chunk.samples}
        scheduler.update(StepOutput(step, sampled))
    assert not scheduler.has_requests
    writer.close()


@pytest.mark.parametrize("max_bytes", [1 << 20, 2])
def test_no_token_id_name_or_salt_is_in_the_file(tmp_path: Path, max_bytes: int) -> None:
    path = tmp_path / "r"
    record(path, max_bytes=max_bytes)
    halves = [path] if max_bytes > 2 else [older_half(path), path]  # small ones begin in the midst of it
    assert len(list(read_recording(halves[0]))) > 1
    data = b"".join(half.read_bytes() for half in halves)
    assert FIRST_ID.to_bytes(4)[:3] not in data
    assert FIRST_ID.to_bytes(4, "little")[1:] not in data
    assert b"secret" not in data
    assert b"name" not in data


def test_equal_beginnings_have_equal_names(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path)
    first, second = (frame.request for frame in read_recording(path) if isinstance(frame, Arrived))
    assert len(first.names) == 2
    assert first.names == second.names
    assert (first.known_len, first.prompt_len, first.max_device_len) == (10, 10, 18)


class Written:
    """Implements Recorder: what would be in the file by now."""

    is_full = False

    def __init__(self) -> None:
        self.frames: list[AnyFrame] = []

    def start(self, frame: Start) -> None:
        pass

    def write(self, frames: Sequence[AnyFrame]) -> None:
        self.frames += frames


def test_abort_of_the_last_request_is_written_at_once() -> None:
    written = Written()
    scheduler = recorded_scheduler(written)
    for name in ("first", "second"):
        scheduler.add(make_request(name, [1, 2, 3], 8))
    scheduler.abort("first")
    assert written.frames == []
    scheduler.abort("second")
    assert written.frames[2:] == [Aborted(0), Aborted(1)]
