"""Batching policies: who may be admitted now, and whether prompts or decodes come first in a step."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from legato.core.request import Request
from legato.scheduler.step_draft import StepDraft
from legato.scheduler.waiting_queue import WaitingQueue

logger = logging.getLogger(__name__)

Fill = Callable[[StepDraft], None]


class BatchingPolicy(ABC):
    """What differs between the ways to batch; the scheduler's step is the same for all."""

    num_rounds = 0

    @abstractmethod
    def fill(self, draft: StepDraft, add_decodes: Fill, add_prefills: Fill) -> None:
        """Fill the step, in this policy's order."""

    @abstractmethod
    def admissible(self, waiting: WaitingQueue, num_running: int, num_rows: int) -> list[Request]:
        """The waiting requests that may be admitted now, first come first; at most `num_rows`."""

    def on_end(self, request: Request) -> None:  # noqa: B027  most policies keep no account
        """A request has ended, or was aborted before it ran."""

    def members(self) -> list[Request]:
        """Those of the open round that have not ended, where there are rounds."""
        return []

    def restore(self, members: list[Request]) -> None:  # noqa: B027
        """Become a policy whose round has these members; nothing was done with this one before."""


class ContinuousBatching(BatchingPolicy):
    """A row that falls free is taken at the next step: nobody waits for a neighbour to end."""

    def fill(self, draft: StepDraft, add_decodes: Fill, add_prefills: Fill) -> None:
        add_decodes(draft)
        add_prefills(draft)

    def admissible(self, waiting: WaitingQueue, num_running: int, num_rows: int) -> list[Request]:
        return waiting.first(num_rows)


class PrefillFirst(ContinuousBatching):
    """Like continuous, but a step that has prompts to compute computes nothing else: decodes wait."""

    def fill(self, draft: StepDraft, add_decodes: Fill, add_prefills: Fill) -> None:
        add_prefills(draft)
        if not draft.chunks:
            add_decodes(draft)


class StaticBatching(ContinuousBatching):
    """Rounds, as in the teaching server: nobody is admitted until the whole round has ended.

    A round takes who waits when it opens. A member that is preempted stays a member.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[str, Request] = {}  # of the open round, those that have not ended
        self._prompt_lens: list[int] = []
        self._opened_at = 0.0

    def admissible(self, waiting: WaitingQueue, num_running: int, num_rows: int) -> list[Request]:
        if not self._members and not num_running:
            self._open(waiting.first(num_rows))
        return [member for member in waiting.first(len(waiting)) if member.request_id in self._members]

    def on_end(self, request: Request) -> None:
        if self._members.pop(request.request_id, None) is not None and not self._members:
            self._close()

    def members(self) -> list[Request]:
        return list(self._members.values())

    def restore(self, members: list[Request]) -> None:
        self._open(members)

    def _open(self, members: list[Request]) -> None:
        self._members = {member.request_id: member for member in members}
        self._prompt_lens = [member.prompt_len for member in members]
        self._opened_at = self._clock()

    def _close(self) -> None:
        self.num_rounds += 1
        width, longest = len(self._prompt_lens), max(self._prompt_lens)
        logger.info(
            "round %d: %d requests, longest %d, shape [%d, %d], padding %d (not computed), %.1f s",
            self.num_rounds,
            width,
            longest,
            width,
            longest,
            width * longest - sum(self._prompt_lens),
            self._clock() - self._opened_at,
        )


def make_policy(name: str, clock: Callable[[], float]) -> BatchingPolicy:
    """The policy that `--batching NAME` asks for."""
    if name == "static":
        return StaticBatching(clock)
    return PrefillFirst() if name == "prefill-first" else ContinuousBatching()
