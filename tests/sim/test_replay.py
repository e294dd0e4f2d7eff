"""A recording is decided once more in the same way, from wherever it begins; another way is noticed."""

import msgspec
import pytest

from legato.observability.recording.frames import Aborted, AnyFrame, Planned, Start, Updated
from legato.scheduler.admission import Admission
from legato.scheduler.policy import ContinuousBatching
from legato.sim.replay import Replay
from legato.sim.scenario import random_scenario
from tests.sim.recorded_worlds import FrameList, recorded


def worlds(seeds: range, start_every: int | None = None) -> list[list[AnyFrame]]:
    return [recorded(random_scenario(seed), FrameList(start_every)) for seed in seeds]


@pytest.mark.parametrize("start_every", [None, 2])
def test_random_worlds_are_decided_the_same_way_again(start_every: int | None) -> None:
    num_starts = num_preempted = num_aborted = num_shared = num_tenants = 0
    policies = set()
    for frames in worlds(range(25), start_every):
        replay = Replay()
        assert replay.follow(frames) is None
        assert replay.num_steps == sum(isinstance(frame, Planned) for frame in frames)
        for frame in frames:
            match frame:
                case Start(batching=batching, nodes=nodes, tables=tables, service=service):
                    policies.add(batching)
                    num_tenants = max(num_tenants, len(service))
                    num_starts += bool(nodes and tables)
                case Planned(chunks=chunks, preempted=preempted):
                    num_preempted += len(preempted)
                    num_shared += any(chunk.page_start == 0 < chunk.start for chunk in chunks)
                case Aborted():
                    num_aborted += 1
    assert policies == {"continuous", "prefill-first", "static"}
    assert min(num_preempted, num_aborted, num_shared) > 3
    assert start_every is None or (num_starts > 10 and num_tenants > 1)


def test_another_policy_is_noticed_with_both_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = worlds(range(20))
    monkeypatch.setattr(ContinuousBatching, "admissible", lambda self, waiting, num_running, num_rows: [])
    [first, *_] = filter(None, (Replay().follow(frames) for frames in recordings))
    assert first.step == 1
    assert first.recorded.startswith("tokens {#0: ")
    assert first.replayed == "tokens {}, preempted []"


def test_another_chunk_length_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = worlds(range(20))
    chunk_len = Admission.chunk_len
    monkeypatch.setattr(
        Admission, "chunk_len", lambda self, request, limit: min(2, chunk_len(self, request, limit))
    )
    assert any(Replay().follow(frames) for frames in recordings)


def test_another_end_is_noticed() -> None:
    frames = worlds(range(1))[0]
    ends = [index for index, frame in enumerate(frames) if isinstance(frame, Updated) and frame.ended]
    number, _ = frames[ends[0]].ended[0]
    frames[ends[0]] = msgspec.structs.replace(frames[ends[0]], ended=[(number, "timeout")])
    difference = Replay().follow(frames)
    assert difference is not None
    assert difference.recorded != difference.replayed


def test_what_the_scheduler_raises_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = worlds(range(1))[0]
    monkeypatch.setattr(Admission, "fits", lambda self: True)
    difference = Replay().follow(frames)
    assert difference is not None
    assert difference.replayed.startswith("TypeError: ")


def test_recording_without_a_start_is_told() -> None:
    difference = Replay().follow([Aborted(0)])
    assert difference is not None
    assert "does not begin with a Start" in difference.replayed
