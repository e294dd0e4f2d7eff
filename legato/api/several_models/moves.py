"""Which model is loaded next, and who makes room for it: decisions alone, without engines or threads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the decision needs to know of a model. Moments are seconds, all on one clock.

    is_loaded     it takes need_bytes, whether its engine still works or not
    is_dead       its engine is gone for good
    num_users     calls that it serves
    used_at       when a call last came or went
    stays_until   before then it makes room for nobody: as long as its loading took
    waiting_number  of the first of those that wait for it to be loaded, in order of arrival; None: nobody
    """

    need_bytes: int
    is_loaded: bool = False
    is_dead: bool = False
    num_users: int = 0
    used_at: float = -math.inf
    stays_until: float = -math.inf
    waiting_number: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """What to do now; models by their index.

    unload    to be ended at once: none of them serves a call
    load      to be loaded when those are gone
    yielding  let no new calls in, so that they fall idle: they are to make room
    look_at   when to look again, if nothing happens before
    """

    unload: tuple[int, ...] = ()
    load: int | None = None
    yielding: tuple[int, ...] = ()
    look_at: float = math.inf


def next_move(places: Sequence[Place], limit_bytes: int, now: float, idle_s: float = math.inf) -> Move:
    """Serve the models that are waited for in order of arrival, one after another.

    The memory for the first of them comes from models without calls, the least recently used first; where
    these do not suffice, from busy ones, which take no new calls until it is loaded and finish what they
    have. A model that was loaded stays as long as that took, so that two which are asked for in turn spend
    most of their time at work. Who is unused for idle_s leaves without anybody's need.
    """
    dead = tuple(index for index, place in enumerate(places) if place.is_loaded and place.is_dead)
    if dead:
        return Move(unload=dead)
    waiting = [index for index, place in enumerate(places) if place.waiting_number is not None]
    waiting = [index for index in waiting if not places[index].is_loaded]
    if not waiting:
        return _idle_move(places, now, idle_s)
    first = min(waiting, key=lambda index: places[index].waiting_number or 0)
    taken_bytes = sum(place.need_bytes for place in places if place.is_loaded)
    leaving = _least_missed(places, taken_bytes + places[first].need_bytes - limit_bytes)
    stays_until = max((places[index].stays_until for index in leaving), default=-math.inf)
    if stays_until > now:  # until then its calls go on as ever
        return Move(look_at=stays_until)
    if any(places[index].num_users for index in leaving):
        return Move(yielding=leaving)
    return Move(unload=leaving, load=first)


def _least_missed(places: Sequence[Place], missing_bytes: int) -> tuple[int, ...]:
    """The loaded models whose end frees so much: idle before busy, least recently used first, few."""
    if missing_bytes <= 0:
        return ()
    loaded = [index for index, place in enumerate(places) if place.is_loaded]
    chosen: list[int] = []
    for index in sorted(loaded, key=lambda index: (places[index].num_users > 0, places[index].used_at)):
        if sum(places[each].need_bytes for each in chosen) >= missing_bytes:
            break
        chosen.append(index)
    for index in list(chosen):  # a large one may have made a small one before it unnecessary
        if sum(places[each].need_bytes for each in chosen if each != index) >= missing_bytes:
            chosen.remove(index)
    return tuple(chosen)


def _idle_move(places: Sequence[Place], now: float, idle_s: float) -> Move:
    ends = {
        index: place.used_at + idle_s
        for index, place in enumerate(places)
        if place.is_loaded and not place.num_users
    }
    return Move(
        unload=tuple(index for index, end in ends.items() if end <= now),
        look_at=min((end for end in ends.values() if end > now), default=math.inf),
    )
