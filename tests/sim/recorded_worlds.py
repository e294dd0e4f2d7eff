"""Simulated servers whose schedulers are recorded, into memory."""

from collections.abc import Callable, Sequence

import pytest

import legato.sim.world as world
from legato.core.config import SchedulerConfig
from legato.kvcache.manager import KVCacheManager
from legato.observability.recording.frames import AnyFrame, Start
from legato.scheduler.policy import BatchingPolicy, PrefillFirst, StaticBatching
from legato.scheduler.recorded import RecordedScheduler
from legato.scheduler.scheduler import Rows
from legato.sim.scenario import Scenario


class FrameList:
    """Implements Recorder; full after every `start_every` plans, if that is given."""

    def __init__(self, start_every: int | None = None) -> None:
        self.frames: list[AnyFrame] = []
        self.num_plans = 0
        self._start_every = start_every

    @property
    def is_full(self) -> bool:
        self.num_plans += 1
        return self._start_every is not None and self.num_plans % self._start_every == 0

    def start(self, frame: Start) -> None:
        self.frames.append(frame)

    def write(self, frames: Sequence[AnyFrame]) -> None:
        self.frames += frames


def name_of(policy: BatchingPolicy) -> str:
    if isinstance(policy, StaticBatching):
        return "static"
    return "prefill-first" if isinstance(policy, PrefillFirst) else "continuous"


def recorded(scenario: Scenario, recorder: FrameList) -> list[AnyFrame]:
    """The frames of all the engines of a scenario."""

    def make(
        config: SchedulerConfig, policy: BatchingPolicy, kv: KVCacheManager, rows: Rows
    ) -> RecordedScheduler:
        return RecordedScheduler(config, policy, kv, rows, batching=name_of(policy), recorder=recorder)

    factory: Callable[..., RecordedScheduler] = make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "Scheduler", factory)
        world.simulate(scenario)
    return recorder.frames
