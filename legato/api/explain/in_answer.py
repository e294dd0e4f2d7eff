"""The header x-legato-explain: an answer that also tells where its time went."""

from collections.abc import AsyncGenerator, Callable, Mapping
from time import perf_counter
from typing import Any

from fastapi import Request

from legato.api.explain.explained_call import ExplainedCall
from legato.core.errors import RequestError

HEADER = "x-legato-explain"
_YES, _NO = ("1", "true"), ("0", "false")

Json = dict[str, Any]
Member = Callable[[], Json]  # made last of all: {"explain": …}, or nothing


def is_wanted(request: Request) -> bool:
    """Whether the header asks for it. Raises RequestError for a value that is neither yes nor no."""
    given = request.headers.get(HEADER)
    if given is None or given.lower() in _NO:
        return False
    if given.lower() in _YES:
        return True
    raise RequestError(f"{HEADER} must be 1 or 0, not {given[:32]!r}", param=HEADER)


def explain_member(request: Request) -> Member | None:
    """What makes the member for the call of this request, when it is wanted."""
    if not is_wanted(request):
        return None

    def make() -> Json:
        call: ExplainedCall | None = getattr(request.state, "explained", None)  # None: nothing was to be done
        return {"explain": call.explain(perf_counter()) if call else None}

    return make


def with_member(answer: Json, member: Member | None) -> Json:
    return answer | member() if member else answer


async def events_with_member(
    events: AsyncGenerator[Json, None], member: Member | None, places: Mapping[str, str | None]
) -> AsyncGenerator[Json, None]:
    """The events, the last of them with the member.

    places  type of the event that ends a stream -> its field that gets the member, or None: itself
    """
    try:
        async for event in events:
            if member is None or event["type"] not in places:
                yield event
            elif (field := places[event["type"]]) is None:
                yield event | member()
            else:
                yield event | {field: event[field] | member()}
    finally:
        await events.aclose()
