"""`legato sim`: the shipped scheduler, K/V accounts and bookkeeping under random scenarios."""

import argparse
import sys
from pathlib import Path

import msgspec

from legato.core.errors import ConfigError, LegatoError
from legato.sim.scenario import Scenario, random_scenario
from legato.sim.shrink import shrink
from legato.sim.world import SimulationError, simulate

SHOWN_EVERY = 100  # scenarios, on a terminal
LOGGED_EVERY = 1_000


class FailedScenarioError(LegatoError):
    """A scenario went wrong; the text says how, and how to see it again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of the first scenario (default: 0)")
    parser.add_argument("--num-seeds", type=int, default=1000, help="scenarios, a seed each (default: 1000)")
    parser.add_argument(
        "--steps", type=int, default=None, help="go on with further seeds until so many steps were simulated"
    )
    parser.add_argument(
        "--events", type=int, default=24, help="happenings in a scenario at most (default: 24)"
    )
    parser.add_argument("--scenario", metavar="FILE", help="run this one, as a failure has written it")
    parser.add_argument(
        "--output", metavar="FILE", default="sim-failure.json", help="where a failing scenario is kept"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises FailedScenarioError at the first scenario that goes wrong, after it was shrunk."""
    if arguments.scenario is not None:
        print(f"{simulate_file(Path(arguments.scenario))} steps, nothing went wrong")
        return 0
    num_steps, seed = 0, arguments.seed
    while seed < arguments.seed + arguments.num_seeds or num_steps < (arguments.steps or 0):
        scenario = random_scenario(seed, arguments.events)
        try:
            num_steps += simulate(scenario)
        except SimulationError as error:
            raise _explained(f"seed {seed}", scenario, error, Path(arguments.output)) from error
        seed += 1
        _show_progress(seed, seed - arguments.seed, num_steps)
    print(f"{seed - arguments.seed} scenarios, {num_steps} steps: nothing went wrong")
    return 0


def _show_progress(next_seed: int, num_scenarios: int, num_steps: int) -> None:
    """In place on a terminal; in a log a line now and then, with what to go on with after an interruption."""
    if sys.stderr.isatty() and num_scenarios % SHOWN_EVERY == 0:
        print(f"\r{num_scenarios} scenarios, {num_steps} steps", end="", file=sys.stderr)
    elif num_scenarios % LOGGED_EVERY == 0:
        print(
            f"{num_scenarios} scenarios, {num_steps} steps; go on with --seed {next_seed}",
            file=sys.stderr,
            flush=True,
        )


def simulate_file(file: Path) -> int:
    """The steps of the scenario in a file. Raises FailedScenarioError, ConfigError for an unreadable file."""
    try:
        scenario = msgspec.json.decode(file.read_bytes(), type=Scenario)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"--scenario {file}: {error}") from error
    try:
        return simulate(scenario)
    except SimulationError as error:
        raise FailedScenarioError(f"{file}: {error}") from error


def _explained(name: str, scenario: Scenario, error: SimulationError, file: Path) -> FailedScenarioError:
    short = shrink(scenario, _fails)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(short)))
    return FailedScenarioError(
        f"{name}: {error}\nshrunk from {len(scenario.events)} to {len(short.events)} events,"
        f" {_fault(short)}; again by: legato sim --scenario {file}"
    )


def _fails(scenario: Scenario) -> bool:
    try:
        simulate(scenario)
    except SimulationError:
        return True
    return False


def _fault(scenario: Scenario) -> str:
    try:
        simulate(scenario)
    except SimulationError as error:
        return str(error)
    raise AssertionError("what was shrunk fails no more")
