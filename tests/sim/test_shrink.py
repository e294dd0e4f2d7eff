"""What fails is made small, and still fails."""

from legato.sim.scenario import Arrive, Ask, Event, Kill, Scenario, random_scenario
from legato.sim.shrink import shrink


def has_poison(scenario: Scenario) -> bool:
    return any(
        ask.is_poison and len(ask.prompt) >= 2
        for event in scenario.events
        if isinstance(event.what, Arrive)
        for ask in event.what.requests
    )


def test_only_what_the_failure_needs_is_left() -> None:
    poison = Ask("bad", (1, 2, 3, 4, 5), 9, is_poison=True)
    events = [Event(2, Kill()), Event(1, Arrive((Ask("good", (1,), 3), poison))), Event(0, Kill())]
    small = shrink(Scenario(random_scenario(0).setup, tuple(events)), has_poison)
    [event] = small.events
    assert event.after_steps == 0
    assert isinstance(event.what, Arrive)
    [ask] = event.what.requests
    assert (len(ask.prompt), ask.max_tokens, ask.is_poison) == (2, 1, True)
