"""The server that clients are run against, and what it counted of them."""

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from legato.bench.server_process import ServerProcess
from legato.core.config import DEFAULT_MODEL

_SAMPLE = re.compile(r"^legato_(\w+)_total\{(.*)\} (\S+)$", re.MULTILINE)
_REASON = re.compile(r'reason="(\w+)"')


@dataclass
class Counts:
    """What came to the server: requests by their end, refusals, tokens."""

    num_answered: int = 0
    num_broken: int = 0  # aborted, or ended by an error
    num_refused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


class LiveServer:
    """A `legato serve` of the default model; `name` is what clients call it."""

    name = DEFAULT_MODEL

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    @property
    def url(self) -> str:
        return self._process.url

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Filled when the block ends, with what came in it."""
        counts, before = Counts(), self._totals()
        yield counts
        after = self._totals()

        def came(*names: str) -> int:
            return sum(round(after.get(name, 0) - before.get(name, 0)) for name in names)

        counts.num_answered = came(
            "request_success stop", "request_success length", "request_success tool_calls"
        )
        counts.num_broken = came("request_success abort", "request_success error")
        counts.num_refused = came(*(name for name in after if name.startswith("admission_rejections")))
        counts.prompt_tokens = came("prompt_tokens")
        counts.generated_tokens = came("generation_tokens")

    def _totals(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        totals = {}
        for name, labels, value in _SAMPLE.findall(text):
            reason = _REASON.search(labels)
            totals[f"{name} {reason[1]}" if reason else name] = float(value)
        return totals


@contextmanager
def serving(*flags: str) -> Iterator[LiveServer]:
    with ServerProcess("legato", [DEFAULT_MODEL, *flags]) as process:
        yield LiveServer(process)
