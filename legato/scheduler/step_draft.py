"""One step while it is being planned."""

from collections.abc import Sequence

from legato.core.plan import RowStart, ScheduledChunk, StepPlan
from legato.core.request import Request


class StepDraft:
    """Chunks chosen so far, within the token budget."""

    def __init__(self, step: int, max_tokens: int) -> None:
        self.step = step
        self.tokens_left = max_tokens
        self.fair_share = max_tokens  # tokens of one prompt while others wait
        self.chunks: dict[str, ScheduledChunk] = {}
        self.has_preempted = (
            False  # then nobody is admitted in this step: the victim's last token may be in flight
        )

    def add(self, request: Request, pages: Sequence[int]) -> None:
        """Schedule what was granted to the request; `pages` are all that it holds."""
        assert request.row is not None
        assert request.extend_len > 0
        self.tokens_left -= request.extend_len
        self.chunks[request.request_id] = ScheduledChunk(
            request_id=request.request_id,
            row=request.row,
            start=request.cached_len,
            num_tokens=request.extend_len,
            samples=request.device_len >= len(request.token_ids),
            page_start=request.pages_written,
            new_pages=tuple(pages[request.pages_written :]),
            row_start=None if request.pages_written else _row_start(request),
        )
        request.pages_written = len(pages)

    def finish(self) -> StepPlan:
        return StepPlan(self.step, tuple(self.chunks.values()))


def _row_start(request: Request) -> RowStart:
    return RowStart(
        token_ids=tuple(request.token_ids),
        prompt_len=request.prompt_len,
        params=request.params,
        seed=request.seed,
        ending_ids=request.ending_ids,
    )
