"""A recording's file: bounded, in two halves, readable up to where its writer died, and nothing else."""

import os
from pathlib import Path

import pytest

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.observability.recording.file import MAGIC, RecordingWriter, older_half, read_recording
from legato.observability.recording.frames import Aborted, AnyFrame, Start

START = Start(
    batching="continuous",
    scheduler=SchedulerConfig(
        max_num_seqs=2, max_step_tokens=8, mixed_prefill_tokens=8, long_prefill_tokens=None, max_model_len=64
    ),
    cache=CacheConfig(num_pages=4, page_size=2),
    requests=[],
    nodes=[],
    tables=[],
    free_pages=[3, 2, 1, 0],
    round=[],
    service={},
)
ABORTED: list[AnyFrame] = [Aborted(number) for number in range(50)]


def write(path: Path, *frames: AnyFrame, max_bytes: int = 1 << 20) -> None:
    writer = RecordingWriter(path, max_bytes)
    writer.start(START)
    writer.write(frames)
    writer.close()


def test_next_engine_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    write(path, *ABORTED[:3])
    write(path, ABORTED[7])
    assert list(read_recording(path)) == [START, *ABORTED[:3], START, ABORTED[7]]
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_torn_end_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    write(path, *ABORTED[:2])
    whole = path.read_bytes()
    first_two = list(read_recording(path))[:-1]
    last_frame = len(whole) - next(end for end in range(len(whole)) if _num_frames(path, whole[:end]) == 2)
    for missing in range(1, last_frame + 1):
        path.write_bytes(whole[:-missing])
        assert list(read_recording(path)) == first_two
    path.write_bytes(whole[:-1])
    write(path)
    assert list(read_recording(path)) == [*first_two, START]


def _num_frames(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    try:
        return len(list(read_recording(path)))
    except ConfigError:
        return 0


def test_size_is_bounded_and_what_is_kept_begins_with_a_start(tmp_path: Path) -> None:
    path, max_bytes = tmp_path / "recording", 4000
    writer = RecordingWriter(path, max_bytes)
    writer.start(START)
    for _ in range(100):
        if writer.is_full:
            writer.start(START)
        writer.write(ABORTED[:9])
        sizes = [each.stat().st_size for each in (path, older_half(path)) if each.exists()]
        assert sum(sizes) < max_bytes + 400
    writer.close()
    for half in (older_half(path), path):
        start, *others = read_recording(half)
        assert start == START
        assert set(others) == set(ABORTED[:9])


@pytest.mark.parametrize("content", [b"", b"{}", b"legato recording 9\n", MAGIC[:-1], os.urandom(200)])
def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^[^\n]*other is no recording[^\n]*$"):
        list(read_recording(path))
    if content:
        with pytest.raises(ConfigError, match="other is no recording"):
            RecordingWriter(path, 1 << 20)
        assert path.read_bytes() == content


def test_what_cannot_be_opened_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone: No such file or directory"):
        list(read_recording(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"--record .*gone/file: No such file or directory"):
        RecordingWriter(tmp_path / "gone" / "file", 1 << 20)


def test_changed_bytes_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    write(path, *ABORTED)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match=r"recording is damaged at byte \d+: a checksum does not fit"):
        list(read_recording(path))


def test_frames_of_another_shape_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    writer = RecordingWriter(path, 1 << 20)
    writer.write([Aborted(-1)])
    writer.close()
    with pytest.raises(ConfigError, match=r"is damaged at byte 19: Expected `int` >= 0"):
        list(read_recording(path))


def test_file_that_is_being_written_is_not_shared(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "recording", 1 << 20)
    with pytest.raises(ConfigError, match="another engine records to this file"):
        RecordingWriter(tmp_path / "recording", 1 << 20)
    writer.close()


def test_full_disk_ends_the_recording_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(fd: int, data: bytes) -> int:
        raise OSError("No space left on device")

    writer = RecordingWriter(tmp_path / "recording", 1 << 20)
    writer.start(START)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        writer.write(ABORTED)
    writer.write(ABORTED)
    assert list(read_recording(tmp_path / "recording")) == [START]
    assert [record.getMessage() for record in caplog.records] == [
        f"the recording ends here, requests go on: {tmp_path}/recording: No space left on device"
    ]
