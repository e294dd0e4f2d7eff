"""The contract between scheduler and executor: one step's work, and what it gave."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from legato.core.sampling_params import SamplingParams

NO_POSITIONS = range(0)


@dataclass(frozen=True, slots=True)
class RowStart:
    """What the device side must know of a request when it gets its row.

    token_ids   every known token, prompt first; goes to the row of the token pool
    ending_ids  ids that end the request: kept from being sampled before min_tokens
    """

    token_ids: tuple[int, ...]
    prompt_len: int
    params: SamplingParams
    seed: int
    ending_ids: frozenset[int]


class WaitReason(StrEnum):
    """Why a step takes in nobody more of those who wait."""

    STEP = "step"  # nobody waits: who comes meanwhile has the next step to wait for
    ROW = "row"  # others hold all rows
    PAGE = "page"  # the K/V store has not the pages
    BUDGET = "budget"  # of tokens in a step
    SHARE = "share"  # of the holder of its key, whom others must not wait for
    ROUND = "round"  # of static batching, which is to end first
    SUSPECT = "suspect"  # a request that engines have died of is computed alone


class ScheduledChunk(NamedTuple):  # made for every request in every step: half the cost of a frozen dataclass
    """One request's share of a step: compute positions [start, start + num_tokens).

    new_pages  page ids to enter in the row's page table from index page_start on, to its end
    row_start  given in the first chunk after the row was taken, and again if all its pages have changed since
    samples    the chunk ends at the last known token, so the next one is sampled
    scored     positions in it whose logits give the logprobs of the prompt tokens after them
    completes  the request ends with this chunk: it wants its prompt computed, and no token
    """

    request_id: str
    row: int
    start: int
    num_tokens: int
    samples: bool
    page_start: int
    new_pages: tuple[int, ...]
    row_start: RowStart | None = None
    scored: range = NO_POSITIONS
    completes: bool = False

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes: a chunk each of different requests, in the order of the policy."""

    step: int
    chunks: tuple[ScheduledChunk, ...]
    waits_for: WaitReason = WaitReason.STEP

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one token's place, by the model alone.

    They are taken from the logits as the model gave them: before bias, penalties and temperature.

    logprob       of the token that was sampled, or that stands there in the prompt
    top_ids       the most probable tokens, the most probable first; of equal ones the lowest id first
    top_logprobs  theirs
    """

    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class RowError(NamedTuple):
    """Why no token could be sampled for one request.

    code  non_finite_logits or grammar_failed, as in `ipc.messages.Failed`
    """

    message: str
    code: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step sampled: request id -> token id, for the chunks that sample.

    errors           request id -> why it has no token or no logprobs; it ends, its neighbours do not notice
    logprobs         request id -> its token's, for the requests that ask for them
    prompt_logprobs  request id -> those of the prompt tokens after its chunk's scored positions
    completed        requests whose last chunk this was, and that wanted no token
    """

    step: int
    token_ids: dict[str, int]
    errors: dict[str, RowError] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    completed: tuple[str, ...] = ()
