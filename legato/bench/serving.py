"""Works sent to one endpoint or to two in turn, and the figures of each repetition."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato.bench.endpoint import BenchError, Endpoint, TimedAnswer
from legato.bench.works import Work, WorkRequest

Report = Callable[[float, str], None]  # share of the work done, the part at hand


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a work is measured, after one repetition that warms up, and from which prompts."""

    num: int
    seed: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One repetition of a work.

    wall_s  from the first request to the end of the last answer
    ttft    time to the first token of an answer: the median over the answers, and the longest
    itl     time between two events with tokens of one answer: the median over all, and the 99th percentile;
            None when no answer had two
    """

    wall_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_s: float
    ttft_max_s: float
    itl_s: float | None
    itl_p99_s: float | None


@dataclass(frozen=True, slots=True)
class WorkResult:
    """A work's repetitions at one endpoint.

    ratios  with another endpoint measured in turn: how many times as fast this one was, pair by pair
    """

    work: Work
    endpoint_name: str
    repetitions: list[Figures]
    ratios: list[float]


def measure_works(
    endpoints: Sequence[Endpoint], works: Sequence[Work], repeats: Repeats, report: Report
) -> list[WorkResult]:
    """Measure each work, the endpoints in turn: A, B, A, B; the same prompts for both, fresh ones each time.

    The first endpoint's results have the ratios. Raises BenchError naming endpoint and work.
    """
    results = []
    num_steps = len(works) * (repeats.num + 1)
    for work_index, work in enumerate(works):
        measured: list[list[Figures]] = [[] for _ in endpoints]
        for repetition in range(repeats.num + 1):
            requests = work.requests(repetition, seed=repeats.seed, vocab_size=repeats.vocab_size)
            for endpoint, figures in zip(endpoints, measured, strict=True):
                done = (work_index * (repeats.num + 1) + repetition) / num_steps
                report(done, f"{work.name}, {endpoint.name}, {repetition} of {repeats.num}")
                figures.append(measure(endpoint, work, requests))
        counted = [figures[1:] for figures in measured]  # the first warmed up
        ratios = [
            other.wall_s / own.wall_s for own, *others in zip(*counted, strict=True) for other in others
        ]
        for index, (endpoint, figures) in enumerate(zip(endpoints, counted, strict=True)):
            results.append(WorkResult(work, endpoint.name, figures, ratios if index == 0 else []))
    return results


def measure(endpoint: Endpoint, work: Work, requests: Sequence[WorkRequest]) -> Figures:
    """Send all requests at once and wait for all answers. Raises BenchError naming endpoint and work."""
    place = f"{endpoint.name}, work {work.name}"
    started_s, answers = asyncio.run(_all_at_once(endpoint, requests))
    good = [answer for answer in answers if isinstance(answer, TimedAnswer)]
    errors = [answer for answer in answers if not isinstance(answer, TimedAnswer)]
    if errors:
        raise BenchError(f"{place}: {len(errors)} of {len(answers)} requests failed: {errors[0]}")
    for answer, request in zip(good, requests, strict=True):
        if answer.num_tokens != request.max_tokens or not answer.token_times_s:
            raise BenchError(
                f"{place}: an answer has {answer.num_tokens} tokens in {len(answer.token_times_s)} events;"
                f" {request.max_tokens} were asked for"
            )
    return _figures(started_s, good, requests)


async def _all_at_once(
    endpoint: Endpoint, requests: Sequence[WorkRequest]
) -> tuple[float, list[TimedAnswer | BenchError]]:
    async def attempt(request: WorkRequest) -> TimedAnswer | BenchError:
        try:
            return await endpoint.complete(request)
        except BenchError as error:
            return error

    started_s = time.perf_counter()
    return started_s, await asyncio.gather(*map(attempt, requests))


def _figures(started_s: float, answers: Sequence[TimedAnswer], requests: Sequence[WorkRequest]) -> Figures:
    wall_s = max(answer.ended_s for answer in answers) - started_s
    ttfts = [answer.token_times_s[0] - answer.started_s for answer in answers]
    itls = sorted(
        after - before
        for answer in answers
        for before, after in zip(answer.token_times_s, answer.token_times_s[1:], strict=False)
    )
    return Figures(
        wall_s=wall_s,
        output_tokens_per_s=sum(request.max_tokens for request in requests) / wall_s,
        prompt_tokens_per_s=sum(len(request.token_ids) for request in requests) / wall_s,
        ttft_s=statistics.median(ttfts),
        ttft_max_s=max(ttfts),
        itl_s=statistics.median(itls) if itls else None,
        itl_p99_s=itls[int(0.99 * (len(itls) - 1))] if itls else None,
    )
