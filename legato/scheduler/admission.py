"""How many tokens of a prompt fit: token budget, chunk size, free pages."""

from collections.abc import Iterable

from legato.core.config import SchedulerConfig
from legato.core.plan import WaitReason
from legato.core.request import Request
from legato.kvcache.manager import KVCacheManager
from legato.scheduler.step_draft import StepDraft


class Admission:
    """Answers for the scheduler; changes nothing.

    Admission is optimistic: a request needs pages for the tokens that are known, not for those it may still
    make. When that hope fails too often for one request, it is next admitted with all the pages it can need.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self._config = config
        self._kv = kv

    def is_reserved(self, request: Request) -> bool:
        """Whether the request gets all its pages when admitted, and so is never preempted again."""
        return request.num_preemptions - request.num_yields >= self._config.max_preemptions

    def may_yield(self, request: Request) -> bool:
        """Whether the request may be preempted for another tenant: so often, and once a page of its answer.

        So it is not computed again and again without getting on.
        """
        num_pages = request.output_len // self._kv.config.page_size
        return not self.is_reserved(request) and request.num_yields < self._config.max_preemptions + num_pages

    def kv_len(self, request: Request) -> int:
        """Tokens that the request must have pages for when it is admitted."""
        known_len = len(request.token_ids)
        return max(known_len, request.max_device_len - 1) if self.is_reserved(request) else known_len

    def fits(self, request: Request, half_prefilled: Iterable[Request]) -> bool:
        """Whether the pages are there, those left alone that admitted prompts still need."""
        pledged = sum(
            self._kv.num_needed_pages(other.request_id, len(other.token_ids)) for other in half_prefilled
        )
        return self._kv.can_start(
            request.token_ids,
            self.kv_len(request),
            reserved=pledged,
            salt=request.cache_salt,
            hit_end=request.hit_end,
        )

    def chunk_len(self, request: Request, limit: int) -> int:
        """Tokens of the request's known ones to compute in this step, of `limit`; 0 when no page is left."""
        held_and_free = len(self._kv.pages(request.request_id)) + self._kv.num_available_pages
        room = held_and_free * self._kv.config.page_size - request.device_len
        return max(0, min(len(request.token_ids) - request.device_len, limit, room))

    def wait_reason(
        self, draft: StepDraft, *, is_trial: bool, num_waiting: int, num_free_rows: int, is_round: bool
    ) -> WaitReason:
        """Why those who still wait do; when nobody does, why a running prompt might be left out."""
        if is_trial:
            return WaitReason.SUSPECT
        if draft.tokens_left == 0:
            return WaitReason.BUDGET
        if num_waiting and is_round:
            return WaitReason.ROUND
        if num_waiting and num_free_rows == 0:
            return WaitReason.ROW
        if draft.light and draft.heavy_left == 0:
            return WaitReason.SHARE
        return WaitReason.PAGE if num_waiting or self._kv.num_available_pages == 0 else WaitReason.STEP
