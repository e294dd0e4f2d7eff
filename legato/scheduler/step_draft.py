"""One step while it is being planned."""

from collections.abc import Sequence

from legato.core.plan import RowStart, ScheduledChunk, StepPlan, WaitReason
from legato.core.request import Request


class StepDraft:
    """Chunks chosen so far, within the budgets: of tokens, and of scores, which are logits of prompt tokens.

    The logits of those that sample have a budget of their own, a row a request: nobody can take them away.
    """

    def __init__(self, step: int, max_tokens: int, max_scores: int) -> None:
        self.step = step
        self.tokens_left = max_tokens
        self.scores_left = max_scores
        self.fair_share = max_tokens  # tokens of one prompt while others wait,
        self.may_complete = False  # or all that are left of it, where they fit
        self.fair_scores = max(1, max_scores // 2)  # likewise
        self.chunks: dict[str, ScheduledChunk] = {}
        self.light: frozenset[str] = frozenset()  # tenants whom others must leave room; empty: no such limit
        self.light_priority = 0  # of their most urgent request: what is more urgent is not limited
        self.heavy_left = max_tokens  # tokens for requests that are limited
        self.has_preempted = False  # then nobody is admitted: the victim's last token may be in flight

    def is_heavy(self, request: Request) -> bool:
        """Whether the request must leave room for others that are as urgent."""
        return (
            bool(self.light) and request.tenant not in self.light and request.priority >= self.light_priority
        )

    def order_key(self, request: Request) -> tuple[int, bool, int]:
        """Orders requests from the first to be served in this step to the first to be preempted."""
        return (request.priority, self.is_heavy(request), request.arrival)

    def within_share(self, decoding: Sequence[Request], *, prompts_wait: bool) -> list[Request]:
        """Who may decode: light tenants' first, then others, in half of their room beside prompts."""
        heavy = [request for request in decoding if self.is_heavy(request)]
        light = [request for request in decoding if not self.is_heavy(request)]
        if heavy and self.tokens_left > 1:
            light = light[: self.tokens_left - 1]  # nobody's stream stands still
        num_heavy = -(-self.heavy_left // 2) if prompts_wait else self.heavy_left
        return light + heavy[:num_heavy]

    def room_for(self, request: Request) -> int:
        """Tokens that the request may have of what is left."""
        return min(self.tokens_left, self.heavy_left) if self.is_heavy(request) else self.tokens_left

    def chunk_limit(self, request: Request, *, others_wait: bool) -> int:
        """Known tokens that the request may have of what is left; 0 if others have the scores it needs."""
        num_tokens, num_scores = self.room_for(request), self.scores_left
        if others_wait:
            fits = self.may_complete and len(request.token_ids) - request.device_len <= num_tokens
            num_tokens = num_tokens if fits else min(num_tokens, self.fair_share)
            num_scores = min(num_scores, self.fair_scores)
        if request.is_scoring:
            scored_end = max(request.device_len, request.scored_len) + num_scores
            if scored_end < request.score_end:
                num_tokens = min(num_tokens, scored_end - request.device_len)
        return num_tokens

    def add(self, request: Request, pages: Sequence[int]) -> None:
        """Schedule what was granted to the request; `pages` are all that it holds."""
        assert request.row is not None
        assert request.extend_len > 0
        scored = request.scored
        self.tokens_left -= request.extend_len
        self.scores_left -= len(scored)
        reaches_end = request.device_len >= len(request.token_ids)
        has_room = request.remain_len > 0
        if self.is_heavy(request):
            self.heavy_left -= request.extend_len
        self.chunks[request.request_id] = ScheduledChunk(
            request_id=request.request_id,
            row=request.row,
            start=request.cached_len,
            num_tokens=request.extend_len,
            samples=reaches_end and has_room,
            page_start=request.pages_written,
            new_pages=tuple(pages[request.pages_written :]),
            row_start=None if request.pages_written else _row_start(request),
            scored=scored,
            completes=reaches_end and not has_room,
        )
        request.pages_written = len(pages)

    def finish(self, waits_for: WaitReason) -> StepPlan:
        return StepPlan(self.step, tuple(self.chunks.values()), waits_for)


def _row_start(request: Request) -> RowStart:
    return RowStart(
        token_ids=tuple(request.token_ids),
        prompt_len=request.prompt_len,
        params=request.params,
        seed=request.seed,
        ending_ids=request.ending_ids,
    )
