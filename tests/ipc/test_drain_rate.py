"""When to come back follows from how fast requests end."""

from legato.ipc.drain_rate import LONGEST_S, SHORTEST_S, UNKNOWN_S, DrainRate


def test_wait_is_what_so_many_ends_took() -> None:
    now = [0.0]
    rate = DrainRate(lambda: now[0])
    assert rate.wait_s(100) == UNKNOWN_S
    for now[0] in range(11):
        rate.count_end()
    assert rate.wait_s(22) == 22 * 10 / 11
    now[0] = 110
    assert rate.wait_s(1) == 10, "nothing has ended for long"


def test_wait_has_bounds() -> None:
    now = [0.0]
    rate = DrainRate(lambda: now[0])
    rate.count_end()
    rate.count_end()
    assert rate.wait_s(5) == SHORTEST_S
    now[0] = 1e6
    assert rate.wait_s(5) == LONGEST_S


def test_only_the_last_ends_count() -> None:
    now = [0.0]
    rate = DrainRate(lambda: now[0])
    for step in range(64):
        now[0] = step * 100.0
        rate.count_end()
    for step in range(64):
        now[0] = 10_000 + step
        rate.count_end()
    assert 0.9 < rate.wait_s(1) <= 1
