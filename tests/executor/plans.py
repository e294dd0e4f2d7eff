"""Chunks and starts of rows, said in few words."""

from legato.core.plan import RowStart, ScheduledChunk, StepPlan
from legato.core.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=100, temperature=0)


def make_plan(*chunks: ScheduledChunk, step: int = 0) -> StepPlan:
    return StepPlan(step, chunks)


def make_chunk(
    request_id: str,
    row: int,
    positions: range,
    *,
    pages: tuple[int, ...] = (),
    page_start: int = 0,
    samples: bool = True,
    prompt: list[int] | None = None,
    params: SamplingParams = GREEDY,
    scored: range = range(0),
    completes: bool = False,
) -> ScheduledChunk:
    """positions  of the tokens to compute; prompt  the request's known tokens, when it gets its row now"""
    return ScheduledChunk(
        request_id=request_id,
        row=row,
        start=positions.start,
        num_tokens=len(positions),
        samples=samples,
        page_start=page_start,
        new_pages=pages,
        row_start=None if prompt is None else make_row_start(prompt, params),
        scored=scored,
        completes=completes,
    )


def make_row_start(prompt: list[int], params: SamplingParams = GREEDY) -> RowStart:
    return RowStart(
        token_ids=tuple(prompt), prompt_len=len(prompt), params=params, seed=1, ending_ids=frozenset()
    )
