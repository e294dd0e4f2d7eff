"""The requests that have not ended, as the API process knows them: enough to go on with another engine."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from legato.core.timing import Course, Part, Stretch, Timing
from legato.ipc.messages import Aborted, Accepted, AddRequest, Failed, Rejected, TokenOutput

if TYPE_CHECKING:
    from legato.ipc.reply_router import Reply, Sink

MAX_STRIKES = 2  # engines that may die in a request's steps, without a token between, before it is suspect


@dataclass(slots=True)
class PendingRequest:
    """One request and what has been said about it.

    output_ids  what its sink was given
    cached_len  as the first engine told it: what another engine finds cached is no news to the client
    timing      as it was told last
    earlier     what was told before the engine that runs now; None when it is the first to give tokens
    strikes     engines that died in one of its steps since its last token
    until       when it was sent, or up to when an engine has last told of it
    died_at     when the first engine died that had it after that
    """

    request: AddRequest
    sink: "Sink"
    output_ids: list[int] = field(default_factory=list)
    cached_len: int | None = None
    timing: Timing | None = None
    earlier: Timing | None = None
    strikes: int = 0
    is_accepted: bool = False
    until: float = 0.0
    died_at: float | None = None

    def stretch(self, course: Stretch) -> Stretch:
        """What an engine tells of it, with the engines before that told nothing more."""
        told = course
        if self.died_at is not None:
            lost = Part("lost", self.died_at - self.until)
            restart = Part("restart", course.start - self.died_at)
            told = Stretch(self.until, course.end, (lost, restart, *course.parts))
        self.until, self.died_at = course.end, None
        return told


@dataclass(slots=True)
class _Leaving:
    """A request that the engine is told to end: who hears of its last moments, and what there is to hear."""

    pending: PendingRequest
    last_word: "Sink"
    course: Course


class PendingRequests:
    """Each request ends exactly once, and what was given to its sink is only ever extended.

    After a death all requests go to the next engine, with the tokens that they have. Those that have
    MAX_STRIKES are suspect: that engine computes them first, one at a time and with nobody beside it, until
    each has a token. If it dies then, it was killed by the one that it computed, which ends with the code
    engine_poisoned, and all others go on.

    What is asked with every message, record(), costs the same however many requests wait.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._leaving: dict[str, _Leaving] = {}
        self._requests: dict[str, PendingRequest] = {}  # in order of arrival
        self._unsent: dict[str, PendingRequest] = {}  # of these, those that the engine has not heard of

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, requests: Sequence[AddRequest], sink: "Sink") -> None:
        now = self._clock()
        added = {request.request_id: PendingRequest(request, sink, until=now) for request in requests}
        self._requests |= added
        self._unsent |= added

    def take_unsent(self) -> list[AddRequest]:
        """What the engine that runs now must be told, in order of arrival."""
        unsent, self._unsent = self._unsent, {}
        return [_resumed(each) for each in unsent.values()]

    def record(self, message: "Reply") -> "tuple[Sink, Reply] | None":
        """Take note of what an engine says; whom to give what of it, or None when it is no news."""
        pending = self._requests.get(message.request_id)
        if pending is None:
            return self._last_word(message)
        if isinstance(message, TokenOutput | Failed) and message.course is not None:
            message = msgspec.structs.replace(message, course=pending.stretch(message.course))
        news: Reply | None = message
        if isinstance(message, TokenOutput):
            news = _extend(pending, message)
            is_last = message.finish_reason is not None
        elif isinstance(message, Accepted):
            news = None if pending.is_accepted else message
            pending.is_accepted = True
            is_last = False
        else:
            is_last = True
            if isinstance(message, Rejected) and pending.is_accepted:
                news = Failed(request_id=message.request_id, error=message.message)
        if is_last:
            del self._requests[message.request_id]
        return None if news is None else (pending.sink, news)

    def forget(self, request_ids: Iterable[str], last_word: "Sink | None" = None) -> list[str]:
        """Nobody waits for these any more; those that the engine knows of.

        last_word  is given the course of each up to its end, in an Aborted, if the engine lives to tell
        """
        known = []
        for request_id in request_ids:
            is_unsent = self._unsent.pop(request_id, None) is not None
            pending = self._requests.pop(request_id, None)
            if pending is None or is_unsent:
                continue
            known.append(request_id)
            if last_word is not None:
                self._leaving[request_id] = _Leaving(pending, last_word, Course(pending.until))
        return known

    def _last_word(self, message: "Reply") -> "tuple[Sink, Reply] | None":
        """What to tell of a request that nobody waits for any more."""
        leaving = self._leaving.get(message.request_id)
        if leaving is None or not isinstance(message, Aborted | TokenOutput | Failed):
            return None
        if message.course is not None:
            leaving.course.extend(leaving.pending.stretch(message.course))
        if not isinstance(message, Aborted):
            return None
        del self._leaving[message.request_id]
        return leaving.last_word, Aborted(request_id=message.request_id, course=leaving.course.take())

    def engine_died(self, running_ids: Collection[str], reason: str) -> "list[tuple[Sink, Failed]]":
        """The engine died while it computed for `running_ids`; whom to tell that their request killed it."""
        now = self._clock()
        running = [self._requests[each] for each in running_ids if each in self._requests]
        for pending in running:
            pending.strikes += 1
        poisoned = [each for each in running if each.strikes > MAX_STRIKES and len(running_ids) == 1]
        for pending in poisoned:
            del self._requests[pending.request.request_id]
        for pending in self._requests.values():
            pending.earlier = pending.timing
            if pending.is_accepted and pending.died_at is None:
                pending.died_at = now
        self._leaving.clear()
        self._unsent = dict(self._requests)
        return [(each.sink, _poisoned(each, reason)) for each in poisoned]

    def take_all(self) -> "dict[str, Sink]":
        """No engine will answer any more: request id -> who waits."""
        lost = {request_id: pending.sink for request_id, pending in self._requests.items()}
        self._requests.clear()
        self._unsent.clear()
        self._leaving.clear()
        return lost


def _extend(pending: PendingRequest, message: TokenOutput) -> TokenOutput | None:
    """The part of `message` that goes beyond what was given; None when there is none."""
    num_known = len(pending.output_ids) - message.index
    if num_known < 0:
        raise AssertionError(
            f"{message.request_id}: token {message.index} came after {len(pending.output_ids)} tokens"
        )
    if num_known >= len(message.token_ids) and message.finish_reason is None:
        return None
    if pending.cached_len is None:
        pending.cached_len = message.cached_len
    new_ids = message.token_ids[num_known:]
    pending.output_ids += new_ids
    if new_ids:
        pending.strikes = 0
    pending.timing = message.timing if pending.earlier is None else pending.earlier.resumed(message.timing)
    return msgspec.structs.replace(
        message,
        index=message.index + num_known,
        token_ids=new_ids,
        cached_len=pending.cached_len,
        timing=pending.timing,
        logprobs=message.logprobs[num_known:],
        prompt_logprobs=[] if num_known else message.prompt_logprobs,
    )


def _poisoned(pending: PendingRequest, reason: str) -> Failed:
    return Failed(
        request_id=pending.request.request_id,
        error=f"the engine died {pending.strikes} times while it computed this request, at last with no other"
        f" beside it; the request is given up: {reason}",
        code="engine_poisoned",
    )


def _resumed(pending: PendingRequest) -> AddRequest:
    """The request as the next engine gets it; a prompt whose logprobs were given is not scored again."""
    is_suspect = pending.strikes >= MAX_STRIKES
    if not pending.is_accepted:
        return msgspec.structs.replace(pending.request, is_suspect=is_suspect)
    params = pending.request.params
    if pending.output_ids and params.prompt_logprobs is not None:
        params = replace(params, prompt_logprobs=None)
    return msgspec.structs.replace(
        pending.request,
        params=params,
        output_ids=list(pending.output_ids),
        is_resumed=True,
        is_suspect=is_suspect,
    )
