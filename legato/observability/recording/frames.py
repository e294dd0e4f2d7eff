"""What a recording consists of; `docs/decisions/recording.md` says why it is this."""

from typing import Annotated

import msgspec
from msgspec import Meta

from legato.core.config import CacheConfig, SchedulerConfig

Count = Annotated[int, Meta(ge=0)]
Number = Count  # of a request, in order of arrival, counted by each engine from 0
PageName = int  # of what the tokens from position 0 to the end of a full page are; see page_names.py


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all frames; the tag is the class name."""


class SavedNode(msgspec.Struct, frozen=True, array_like=True):
    """A run of pages of the prefix cache; `parent` counts among the nodes before it, -1 is the root."""

    parent: int
    names: list[PageName]
    pages: list[Count]


class SavedTable(msgspec.Struct, frozen=True, array_like=True):
    """The pages of an admitted request, and the node where those that the prefix cache knows end."""

    number: Number
    node: int
    pages: list[Count]
    duplicates: list[Count]


class SavedRequest(msgspec.Struct, frozen=True, array_like=True):
    """The ledger of one request (core/request.py); `names` of its known tokens' full pages.

    tenant  a number for it; 0 is the one without a name
    """

    number: Number
    known_len: Count
    prompt_len: Count
    max_device_len: Count
    priority: int
    is_scored: bool
    is_suspect: bool
    names: list[PageName]
    state: str = "waiting"
    row: int | None = None
    cached_len: Count = 0
    device_len: Count = 0
    hit_len: Count = 0
    scored_len: Count = 0
    num_preemptions: Count = 0
    last_turn: int = -1
    pages_written: Count = 0
    tenant: Count = 0
    num_yields: Count = 0


class Start(Frame, frozen=True):
    """A scheduler as it is before what follows: new with its engine, or in the midst of its work.

    requests    in order of arrival
    nodes       those that are held first, then the others, the one to be evicted first last
    free_pages  the next one to be taken last
    service     of each known tenant, by its number
    round       numbers of the open round's members, with static batching
    """

    batching: str
    scheduler: SchedulerConfig
    cache: CacheConfig
    requests: list[SavedRequest]
    nodes: list[SavedNode]
    tables: list[SavedTable]
    free_pages: list[Count]
    round: list[Number]
    service: dict[Count, int]


class Arrived(Frame, frozen=True):
    request: SavedRequest


class Aborted(Frame, frozen=True):
    number: Number


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """One request's share of a step, as core/plan.py: ScheduledChunk has it."""

    number: Number
    row: Count
    start: Count
    num_tokens: Count
    num_scored: Count
    samples: bool
    completes: bool
    page_start: Count
    new_pages: list[Count]


class Planned(Frame, frozen=True):
    """A decision: who computes what in the next step, and who was preempted for it."""

    chunks: list[Chunk]
    preempted: list[Number]


class Updated(Frame, frozen=True):
    """What a step gave, in order, of requests that had not ended before; and which of them it has ended.

    tokens   whose next token was sampled
    names    whose token ended a page, and that page's name
    scored   for how many prompt tokens there are logprobs
    ended    why, of each that has ended
    """

    broken: list[Number]
    scored: list[tuple[Number, Count]]
    completed: list[Number]
    tokens: list[Number]
    names: list[tuple[Number, PageName]]
    ended: list[tuple[Number, str]]


AnyFrame = Start | Arrived | Aborted | Planned | Updated
