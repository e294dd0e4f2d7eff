"""`legato replay`: recorded decisions, made once more by the shipped scheduler, and compared."""

import argparse
from pathlib import Path

from legato.core.errors import LegatoError
from legato.observability.recording.file import older_half, read_recording
from legato.sim.replay import Replay


class OtherDecisionError(LegatoError):
    """The scheduler decides otherwise than is recorded; the text shows both."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="as --record has written it; its older half, FILE.1, comes first"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises OtherDecisionError at the first difference, ConfigError for a file that is no recording."""
    file = Path(arguments.file)
    halves = [older_half(file)] if older_half(file).exists() else []
    for half in [*halves, file]:
        print(f"{half}: {replay_file(half)} steps, the same decisions")
    return 0


def replay_file(file: Path) -> int:
    """The number of steps that were decided again. Raises OtherDecisionError, ConfigError."""
    replay = Replay()
    difference = replay.follow(read_recording(file))
    if difference is None:
        return replay.num_steps
    raise OtherDecisionError(
        f"{file}: step {difference.step} is decided otherwise"
        f"\n  recorded: {difference.recorded}\n  replayed: {difference.replayed}"
    )
