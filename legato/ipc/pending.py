"""The requests that have not ended, as the API process knows them: enough to go on with another engine."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from legato.ipc.messages import Accepted, AddRequest, Failed, Rejected, TokenOutput

if TYPE_CHECKING:
    from legato.ipc.reply_router import Reply, Sink

MAX_STRIKES = 2  # engines that may die in a request's steps, without a token between, before it runs alone


@dataclass(slots=True)
class PendingRequest:
    """One request and what has been said about it.

    output_ids  what its sink was given
    cached_len  as the first engine told it: what another engine finds cached is no news to the client
    strikes     engines that died in one of its steps since its last token
    is_sent     the engine that runs now knows of it
    """

    request: AddRequest
    sink: "Sink"
    output_ids: list[int] = field(default_factory=list)
    cached_len: int | None = None
    strikes: int = 0
    is_accepted: bool = False
    is_sent: bool = False


class PendingRequests:
    """Each request ends exactly once, and what was given to its sink is only ever extended.

    After a death all requests go to the next engine, with the tokens that they have. Of those that have
    MAX_STRIKES one runs at a time, with nobody beside it, until it has a token: an engine that dies then was
    killed by this one, which ends with the code engine_poisoned, and all others go on.
    """

    def __init__(self) -> None:
        self._requests: dict[str, PendingRequest] = {}  # in order of arrival
        self._on_trial: str | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, requests: Sequence[AddRequest], sink: "Sink") -> None:
        self._requests |= {request.request_id: PendingRequest(request, sink) for request in requests}

    def take_unsent(self) -> list[AddRequest]:
        """What the engine that runs now must be told, in order of arrival."""
        if self._on_trial is not None:
            return []
        suspect = next((each for each in self._requests.values() if each.strikes >= MAX_STRIKES), None)
        if suspect is None:
            chosen = [each for each in self._requests.values() if not each.is_sent]
        elif suspect.is_sent or any(each.is_sent for each in self._requests.values()):
            return []  # cannot be: a strike comes with a death, and then nobody is sent
        else:
            self._on_trial = suspect.request.request_id
            chosen = [suspect]
        for each in chosen:
            each.is_sent = True
        return [_resumed(each) for each in chosen]

    def record(self, message: "Reply") -> "tuple[Sink, Reply] | None":
        """Take note of what an engine says; whom to give what of it, or None when it is no news."""
        pending = self._requests.get(message.request_id)
        if pending is None:
            return None
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
        if self._on_trial == message.request_id and (is_last or isinstance(news, TokenOutput)):
            self._on_trial = None
        return None if news is None else (pending.sink, news)

    def forget(self, request_ids: Iterable[str]) -> list[str]:
        """Nobody waits for these any more; those that the engine knows of."""
        known = []
        for request_id in request_ids:
            pending = self._requests.pop(request_id, None)
            if pending is not None and pending.is_sent:
                known.append(request_id)
            if self._on_trial == request_id:
                self._on_trial = None
        return known

    def engine_died(self, running_ids: Collection[str], reason: str) -> "list[tuple[Sink, Failed]]":
        """The engine died while it computed for `running_ids`; whom to tell that their request killed it."""
        suspect, self._on_trial = self._on_trial, None
        for pending in self._requests.values():
            pending.is_sent = False
            pending.strikes += pending.request.request_id in running_ids
        if suspect is None or suspect not in running_ids:
            return []
        failed = Failed(
            request_id=suspect,
            error=f"the engine died {MAX_STRIKES + 1} times while it computed this request, at last with no"
            f" other beside it; the request is given up: {reason}",
            code="engine_poisoned",
        )
        return [(self._requests.pop(suspect).sink, failed)]

    def take_all(self) -> "dict[str, Sink]":
        """No engine will answer any more: request id -> who waits."""
        lost = {request_id: pending.sink for request_id, pending in self._requests.items()}
        self._requests.clear()
        self._on_trial = None
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
    return msgspec.structs.replace(
        message,
        index=message.index + num_known,
        token_ids=new_ids,
        cached_len=pending.cached_len,
        logprobs=message.logprobs[num_known:],
        prompt_logprobs=[] if num_known else message.prompt_logprobs,
    )


def _resumed(pending: PendingRequest) -> AddRequest:
    """The request as the next engine gets it; a prompt whose logprobs were given is not scored again."""
    if not pending.is_accepted:
        return pending.request
    params = pending.request.params
    if pending.output_ids and params.prompt_logprobs is not None:
        params = replace(params, prompt_logprobs=None)
    return msgspec.structs.replace(
        pending.request, params=params, output_ids=list(pending.output_ids), is_resumed=True
    )
