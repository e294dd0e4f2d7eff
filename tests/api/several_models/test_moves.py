"""Who is loaded next and who makes room, at moments in sight."""

from math import inf

import pytest

from legato.api.several_models.moves import Move, Place, next_move


def loaded(need_bytes: int = 40, **about: object) -> Place:
    return Place(need_bytes=need_bytes, is_loaded=True, **about)  # type: ignore[arg-type]


def wanted(number: int = 0, need_bytes: int = 40) -> Place:
    return Place(need_bytes=need_bytes, waiting_number=number)


@pytest.mark.parametrize(
    ("places", "move"),
    [
        ([wanted()], Move(load=0)),
        ([loaded(), wanted()], Move(load=1)),
        ([loaded(), loaded(), wanted()], Move(unload=(0,), load=2)),
        ([loaded(used_at=2), loaded(used_at=1), wanted()], Move(unload=(1,), load=2)),
        ([loaded(used_at=1, num_users=1), loaded(used_at=2), wanted()], Move(unload=(1,), load=2)),
        ([loaded(used_at=2, num_users=1), loaded(used_at=1, num_users=1), wanted()], Move(yielding=(1,))),
        ([loaded(30, used_at=1), loaded(30, used_at=2, num_users=1), wanted(0, 90)], Move(yielding=(0, 1))),
        ([loaded(10, used_at=1), loaded(60, used_at=2), wanted(0, 80)], Move(unload=(1,), load=2)),
        ([loaded(), wanted(7), wanted(3)], Move(load=2)),
        ([loaded(is_dead=True, num_users=1), wanted()], Move(unload=(0,))),
        ([loaded(), loaded(waiting_number=1)], Move()),
        ([Place(need_bytes=40)], Move()),
    ],
    ids=[
        "there is room",
        "there is room beside another",
        "an idle one makes room",
        "the least recently used one does",
        "a busy one does not, for an idle one that was used later",
        "all are busy: the least recently used one lets nobody in",
        "one is not enough: both, once the busy one is idle",
        "a small one is not ended in vain",
        "in order of arrival",
        "a dead engine first of all",
        "who waits for one that is loaded needs no move",
        "nobody waits",
    ],
)
def test_move(places: list[Place], move: Move) -> None:
    assert next_move(places, limit_bytes=100, now=50.0) == move


def test_model_stays_as_long_as_its_loading_took_and_lets_all_in_until_then() -> None:
    places = [loaded(stays_until=60.0), loaded(stays_until=55.0, used_at=-1), wanted()]
    assert next_move(places[::2], limit_bytes=70, now=50.0) == Move(look_at=60.0)
    assert next_move(places[::2], limit_bytes=70, now=60.0) == Move(unload=(0,), load=1)


def test_model_without_calls_leaves_after_a_while() -> None:
    places = [loaded(used_at=10.0), loaded(used_at=30.0), loaded(used_at=1.0, num_users=1)]
    assert next_move(places, limit_bytes=200, now=50.0, idle_s=40.0) == Move(unload=(0,), look_at=70.0)
    assert next_move(places, limit_bytes=200, now=50.0) == Move(look_at=inf)


def test_two_that_are_always_asked_for_take_turns_and_spend_half_of_the_time_at_work() -> None:
    """Calls come without end for both; loading takes 3 s, a call 1 s."""
    now, stays_until, turns, working_s = 0.0, 0.0, [0], 0.0
    while now < 600:
        here = turns[-1]
        places = [
            loaded(60, num_users=1, stays_until=stays_until) if index == here else wanted(0, 60)
            for index in range(2)
        ]
        move = next_move(places, limit_bytes=100, now=now)
        if move.yielding:  # its last call ends
            now += 1.0
            working_s += 1.0
            turns.append(1 - here)
            now += 3.0
            stays_until = now + 3.0
        else:
            working_s += move.look_at - now
            now = move.look_at
    assert working_s >= now / 2
    assert turns[:4] == [0, 1, 0, 1]
