"""Static rounds against continuous batching: the same prompts in one request to each, the same texts back."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato.bench.endpoint import BenchError
from legato.bench.server_process import ServerProcess
from legato.core.config import STATIC_ROUND

Report = Callable[[float, str], None]  # share of the work done, the part at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is posted: the first N of `prompts`, for each N of `nums`; each `repeats` times.

    fields  of the body beside the prompts
    """

    prompts: Sequence[str]
    nums: Sequence[int]
    repeats: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One POST /generate: its seconds, the median of the repeats, and rounds, 0 when batching has none."""

    seconds: float
    num_rounds: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same N prompts by both policies."""

    num_prompts: int
    static: Measurement
    continuous: Measurement

    @property
    def ratio(self) -> float:
        """How many times faster continuous batching was."""
        return self.static.seconds / self.continuous.seconds


def compare_batching(model: str, workload: Workload, report: Report) -> list[Comparison]:
    """Start both servers and measure them in turn, so that what else the machine does slows both alike.

    Prefix caching is off: a repeat computes what the first run did.
    Raises BenchError when a server fails, or when their texts differ.
    """
    common = [model, "--no-enable-prefix-caching", "--max-num-seqs"]
    static_flags = [*common, str(STATIC_ROUND), "--batching", "static"]
    continuous_flags = [*common, str(max(64, *workload.nums)), "--batching", "continuous"]
    progress = _Progress(report, num_answers=2 * workload.repeats * sum(workload.nums))
    report(0.0, "two servers start")
    with (
        ServerProcess("static", static_flags) as static,
        ServerProcess("continuous", continuous_flags) as continuous,
    ):
        comparisons = []
        for num in workload.nums:
            measured = []
            for server in (static, continuous):
                progress.tell(f"{num} prompts, {server.name}")
                measured.append(measure(server, workload, num))
                progress.add(num * workload.repeats, measured[-1].seconds * workload.repeats)
            comparisons.append(Comparison(num, *measured))
            check_same(comparisons[-1])
    return comparisons


class _Progress:
    """What is left, in answers, and in seconds as soon as some have been measured."""

    def __init__(self, report: Report, num_answers: int) -> None:
        self._report = report
        self._num_answers = num_answers
        self._num_done = 0
        self._seconds = 0.0

    def add(self, num_answers: int, seconds: float) -> None:
        self._num_done += num_answers
        self._seconds += seconds

    def tell(self, part: str) -> None:
        num_left = self._num_answers - self._num_done
        left = f"{num_left} of {self._num_answers} answers to go"
        if self._num_done:
            left += f", about {self._seconds / self._num_done * num_left:.0f} s"
        self._report(self._num_done / self._num_answers, f"{part}; {left}")


def measure(server: ServerProcess, workload: Workload, num: int) -> Measurement:
    """Post the first `num` prompts in one request, `repeats` times."""
    body = {**workload.fields, "prompts": workload.prompts[:num]}
    rounds_before = server.get("/stats")["rounds"]
    seconds, texts = [], []
    for _ in range(workload.repeats):
        started = time.perf_counter()
        texts.append(tuple(server.post("/generate", body)["generated_texts"]))
        seconds.append(time.perf_counter() - started)
    if len(set(texts)) > 1:
        raise BenchError(f"the {server.name} server gave other texts when asked again, with {num} prompts")
    num_rounds = (server.get("/stats")["rounds"] - rounds_before) // workload.repeats
    return Measurement(statistics.median(seconds), num_rounds, texts[0])


def check_same(comparison: Comparison) -> None:
    """Raise BenchError naming the first prompt whose texts differ."""
    pairs = zip(comparison.static.texts, comparison.continuous.texts, strict=True)
    for index, (static, continuous) in enumerate(pairs):
        if static != continuous:
            raise BenchError(
                f"static and continuous batching differ with {comparison.num_prompts} prompts,"
                f" at prompt {index}:\n  static      {static!r}\n  continuous  {continuous!r}"
            )


def predict_static_s(num_prompts: int, round_s: float) -> float:
    """Seconds of N prompts in rounds, if each round took as long as a full one that was measured."""
    return math.ceil(num_prompts / STATIC_ROUND) * round_s
