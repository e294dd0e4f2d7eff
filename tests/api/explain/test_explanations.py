"""Which calls can be explained: by whom, by which names, for how long."""

import pytest

import legato.api.explain.explanations as module
from legato.api.explain.explained_call import ExplainedCall
from legato.api.explain.explanations import Explanations
from legato.core.errors import UnknownRequestError
from legato.core.timing import Course, Part, Stretch
from tests.api.fake_service import FakeService


def make_call(name: str, tenant: str | None = None, *, num_answers: int = 1) -> ExplainedCall:
    """Received at 10 s, read at 11 s, sent to the engine at 12 s."""
    return ExplainedCall(
        name,
        tenant,
        FakeService(),
        received_at=10.0,
        body_read_at=11.0,
        courses=[Course(12.0) for _ in range(num_answers)],
        request_ids=[f"{name}-{index}" for index in range(num_answers)],
    )


def end(explanations: Explanations, call: ExplainedCall, *names: str) -> None:
    explanations.end(call, explanations.add(call, names), 20.0)


def test_call_is_found_by_each_of_its_names_while_it_runs_and_after() -> None:
    explanations, call = Explanations(), make_call("a")
    keys = explanations.add(call, ["a", "mine"])
    assert explanations.find(None, "mine") is call
    explanations.end(call, keys, 20.0)
    assert explanations.find(None, "a") is explanations.find(None, "mine") is call


def test_holder_of_a_key_finds_its_own_alone_even_under_the_same_name() -> None:
    explanations, first, second = Explanations(), make_call("a", "one"), make_call("b", "two")
    end(explanations, first, "same")
    end(explanations, second, "same", "other")
    assert explanations.find("one", "same") is first
    assert explanations.find("two", "same") is second
    with pytest.raises(UnknownRequestError, match="no request 'other' can be explained: it is unknown, or"):
        explanations.find("one", "other")


def test_oldest_calls_make_room_by_count_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED_CALLS", 3)
    explanations = Explanations()
    running = make_call("running")
    explanations.add(running, ["running"])
    for number in range(5):
        end(explanations, make_call(str(number)), str(number), "shared")
    for number in (0, 1):
        with pytest.raises(UnknownRequestError):
            explanations.find(None, str(number))
    assert [explanations.find(None, str(number)).id for number in (2, 3, 4)] == ["2", "3", "4"]
    assert explanations.find(None, "shared").id == "4"
    assert explanations.find(None, "running") is running
    monkeypatch.setattr(module, "MAX_BYTES", 4000)
    end(explanations, make_call("wide", num_answers=2), "wide")
    assert explanations.find(None, "wide").id == "wide"
    with pytest.raises(UnknownRequestError):
        explanations.find(None, "4")


def stretch(start: float, *parts: tuple[str, float]) -> Stretch:
    return Stretch(start, start + sum(each for _, each in parts), [Part(*each) for each in parts])


def test_parts_add_up_from_the_head_to_the_last_byte() -> None:
    call = make_call("a", num_answers=2)
    first, second = call._courses
    first.go_on(stretch(12.5, ("prefill", 1.0), ("decode", 2.0)))
    second.go_on(stretch(12.5, ("prefill", 1.0), ("decode", 5.0)))
    first.is_closed = second.is_closed = True
    call.ended_at = 19.0
    told = call.explain(99.0)
    assert told["elapsed_s"] == 9.0
    assert [part["cause"] for part in told["choices"][0]["parts"]] == [
        *("receive", "prepare", "handover", "prefill", "decode", "siblings", "deliver")
    ]
    for choice in told["choices"]:
        assert sum(part["seconds"] for part in choice["parts"]) == 9.0
        assert choice["unexplained_s"] == 0


def test_running_call_is_explained_up_to_what_the_engine_says_now() -> None:
    call = make_call("a")
    told = call.explain(99.0, {"a-0": stretch(13.0, ("wait_row", 4.0))})
    assert told["elapsed_s"] == 7.0
    assert [(part["cause"], part["seconds"]) for part in told["choices"][0]["parts"]] == [
        *(("receive", 1.0), ("prepare", 1.0), ("handover", 1.0), ("wait_row", 4.0))
    ]


@pytest.mark.parametrize("missing", ["unexplained", "restart"])
def test_what_nobody_tells_of_is_called_so(missing: str) -> None:
    call = make_call("a")
    call._courses[0].go_on(stretch(12.0, ("prefill", 1.0)))
    [choice] = call.explain(20.0, missing=missing)["choices"]
    assert choice["parts"][-1] == {"cause": missing, "seconds": 7.0}
    assert choice["unexplained_s"] == (7.0 if missing == "unexplained" else 0)
