"""A failing scenario, made as short as it can be while it still fails."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from legato.sim.scenario import Arrive, Ask, Event, Scenario

Item = TypeVar("Item")


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The last of ever smaller scenarios that fails; `fails` must hold for the first."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(scenario):
            if fails(candidate):
                scenario, is_smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Fewer events, then fewer requests, then shorter ones and shorter pauses."""
    for events in _without_some(scenario.events):
        yield msgspec.structs.replace(scenario, events=tuple(events))
    for index, event in enumerate(scenario.events):
        for smaller in _smaller_events(event):
            events = [*scenario.events[:index], smaller, *scenario.events[index + 1 :]]
            yield msgspec.structs.replace(scenario, events=tuple(events))


def _without_some(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Without half of them, a quarter, …, one."""
    size = len(items) // 2 or len(items)
    while size:
        for start in range(0, len(items), size):
            yield [*items[:start], *items[start + size :]]
        size //= 2


def _smaller_events(event: Event) -> Iterator[Event]:
    if event.after_steps:
        yield msgspec.structs.replace(event, after_steps=0)
    if not isinstance(event.what, Arrive):
        return
    asks = event.what.requests
    if len(asks) > 1:
        for fewer in _without_some(asks):
            if fewer:
                yield Event(event.after_steps, Arrive(tuple(fewer)))
    for index, ask in enumerate(asks):
        for smaller in _smaller_asks(ask):
            yield Event(event.after_steps, Arrive((*asks[:index], smaller, *asks[index + 1 :])))


def _smaller_asks(ask: Ask) -> Iterator[Ask]:
    if len(ask.prompt) > 1:
        yield msgspec.structs.replace(ask, prompt=ask.prompt[: len(ask.prompt) // 2])
        yield msgspec.structs.replace(ask, prompt=ask.prompt[1:])
    if ask.max_tokens > 1:
        yield msgspec.structs.replace(ask, max_tokens=ask.max_tokens // 2)
        yield msgspec.structs.replace(ask, max_tokens=ask.max_tokens - 1)
    if ask.tenant:
        yield msgspec.structs.replace(ask, tenant="")
    if ask.priority or ask.cache_salt or ask.is_scored or ask.is_poison or ask.seed:
        yield Ask(ask.request_id, ask.prompt, ask.max_tokens, tenant=ask.tenant)
