"""`python -m tests.conformance [CLIENT ...]`: real clients, unmodified, against the default model's server.

Installs each client into `build/conformance` the first time, which needs an index; runs it; says what it saw.
"""

import sys
import time
from importlib import import_module
from pathlib import Path

from legato.bench.endpoint import BenchError
from tests.conformance.environment import ConformanceError, Environment
from tests.conformance.exported_model import export_default_model
from tests.conformance.live_server import serving

FOLDER = Path(__file__).parents[2] / "build" / "conformance"
CLIENTS = ("llama-benchy", "guidellm", "aiperf", "lm-eval")


def main(names: list[str]) -> int:
    """Check the named clients, or all; 1 when one fails."""
    if unknown := set(names) - set(CLIENTS):
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CLIENTS)}")
        return 2
    model = export_default_model(FOLDER / "model")
    return max([check(name, model) for name in names or CLIENTS])


def check(name: str, model: Path) -> int:
    client = import_module(f"tests.conformance.{name.replace('-', '_')}")
    environment = Environment(FOLDER / name, client.REQUIREMENTS)
    try:
        install_s = environment.install()
        started = time.perf_counter()
        with serving(*client.FLAGS) as server:
            seen = client.check(environment, server, model)
    except (ConformanceError, BenchError) as error:
        print(f"{name}: FAILED: {error}", flush=True)
        return 1
    installed = "" if install_s is None else f" (installed in {install_s:.0f} s)"
    print(f"{name}: passed in {time.perf_counter() - started:.0f} s{installed}: {seen}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
