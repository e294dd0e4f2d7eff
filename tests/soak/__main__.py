"""`python -m tests.soak [--minutes M] [--seed N]`: a server under mixed load with faults, and what it keeps.

The server is measured idle, each time with a fresh engine that has answered the same calls: after a fourth of
the time, and at the end. Fails unless all answers were right, each request ended once, and nothing grew.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.e2e.conftest import Server, end_server, start_server, wait_until
from tests.soak.load import Load
from tests.soak.vitals import Vitals, engine_pid
from tests.tiny_model import write_tiny_model

WARM_UP = 0.25  # of the time
MAX_GROWTH = 1.05
MOST_TOLD = 10  # faults
LOG_CHARS = 20_000
SETTINGS = {
    "send_timeout_s": 3,
    "watchdog_s": 3,
    "max_num_seqs": 16,
    "max_num_queued_reqs": 64,
    "num_pages": 400,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "tiny")
        server = start_server(Path(folder), model, app=None, **SETTINGS)
        faults = ["the soak itself broke off"]
        try:
            faults = soak(server, Load(server, options.seed), options.minutes * 60)
        finally:
            end_server(server)
            if faults:
                print(server.log.read_text()[-LOG_CHARS:])
    for fault in faults[:MOST_TOLD]:
        print(f"FAULT (--seed {options.seed}): {fault}")
    return 1 if faults else 0


def soak(server: Server, load: Load, seconds: float) -> list[str]:
    """Load the server for so long and print what was seen; what should not have been."""
    asyncio.run(load.learn())
    asyncio.run(load.run(seconds * WARM_UP))
    before = at_rest(server, load)
    asyncio.run(load.run(seconds * (1 - WARM_UP)))
    after = at_rest(server, load)
    for outcome, count in sorted(load.outcomes.items()):
        print(f"{outcome:<28} {count:7d}")
    for name in before:
        print(f"{name:<7} after warm-up  {before[name]}\n{name:<7} at the end     {after[name]}")
    return (
        load.faults
        + [fault for name in before for fault in growths(name, before[name], after[name])]
        + accounts(server)
    )


def at_rest(server: Server, load: Load) -> dict[str, Vitals]:
    """Both processes when all is over, the engine a new one that has answered every call once."""
    pid = engine_pid(server.process.pid)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    asyncio.run(load.replay())
    wait_until(lambda: all(value == 0 for value in gauges(server).values()), timeout_s=60)
    engine = engine_pid(server.process.pid)
    assert engine is not None
    return {"api": settled(server.process.pid), "engine": settled(engine)}


def settled(pid: int) -> Vitals:
    """What the process holds when what the last calls had open is closed."""
    readings = []
    for _ in range(20):
        readings.append(Vitals.of(pid))
        time.sleep(0.1)
    return min(readings, key=lambda vitals: vitals.num_descriptors)


def growths(name: str, before: Vitals, after: Vitals) -> list[str]:
    faults = []
    if after.rss_bytes > before.rss_bytes * MAX_GROWTH:
        faults.append(f"{name}: memory has grown")
    if after.num_descriptors > before.num_descriptors:
        faults.append(f"{name}: descriptors have grown")
    if after.num_threads > before.num_threads:
        faults.append(f"{name}: threads have grown")
    return faults


def gauges(server: Server) -> dict[str, float]:
    """What must be 0 while nobody asks for anything."""
    status, stats = server.get("/stats")
    assert status == 200, stats
    return {name: stats[name] for name in ("running", "waiting", "pages_held")}


def accounts(server: Server) -> list[str]:
    """Each accepted request has ended, and once."""
    with urllib.request.urlopen(server.url + "/metrics") as response:
        text = response.read().decode()
    accepted = _sum(text, "legato_requests_accepted_total")
    ended = _sum(text, "legato_request_success_total")
    print(f"requests accepted {accepted:.0f}, ended {ended:.0f}")
    return [] if accepted == ended else [f"{accepted:.0f} requests were accepted and {ended:.0f} have ended"]


def _sum(metrics: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", metrics, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
