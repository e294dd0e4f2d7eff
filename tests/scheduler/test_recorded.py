"""What a recording holds of requests: lengths and who begins like whom, but no token, id or salt."""

from pathlib import Path

import pytest

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.plan import StepOutput
from legato.executor.request_table import RequestTable
from legato.kvcache.manager import KVCacheManager
from legato.observability.recording.file import RecordingWriter, older_half, read_recording
from legato.observability.recording.frames import Arrived
from legato.scheduler.policy import ContinuousBatching
from legato.scheduler.recorded import RecordedScheduler
from tests.scheduler.driver import make_request

PAGE = 4
FIRST_ID = 0x5EC4E700  # four bytes that stand for themselves in any encoding


def record(path: Path, *, max_bytes: int = 1 << 20) -> None:
    """Two requests that begin alike, and their answers."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_step_tokens=64,
        mixed_prefill_tokens=64,
        long_prefill_tokens=None,
        max_model_len=64,
    )
    kv = KVCacheManager(CacheConfig(num_pages=16, page_size=PAGE))
    writer = RecordingWriter(path, max_bytes)
    scheduler = RecordedScheduler(
        config, ContinuousBatching(), kv, RequestTable(4), batching="continuous", recorder=writer
    )
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
