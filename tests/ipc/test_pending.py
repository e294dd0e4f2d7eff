"""What the API process knows of requests that have not ended: nothing lost, nothing twice, over engines."""

from collections.abc import Sequence
from typing import Any

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.timing import Timing
from legato.ipc.messages import Accepted, AddRequest, Failed, Rejected, TokenOutput
from legato.ipc.pending import PendingRequests
from legato.ipc.reply_router import Reply

REASON = "killed"


def ignore(reply: Reply) -> None:
    raise AssertionError(f"nobody routes {reply} here")


def request(request_id: str, **settings: Any) -> AddRequest:
    return AddRequest(request_id=request_id, token_ids=[1, 2], params=SamplingParams(**settings), seed=7)


def pending_of(*request_ids: str) -> PendingRequests:
    """Requests that an engine has accepted."""
    pending = PendingRequests()
    pending.add([request(each) for each in request_ids], ignore)
    assert ids(pending.take_unsent()) == list(request_ids)
    for each in request_ids:
        pending.record(Accepted(request_id=each))
    return pending


def ids(requests: Sequence[AddRequest]) -> list[str]:
    return [each.request_id for each in requests]


def token(request_id: str, index: int, *token_ids: int, **more: Any) -> TokenOutput:
    return TokenOutput(request_id=request_id, index=index, token_ids=list(token_ids), **more)


def news(pending: PendingRequests, message: Reply) -> Reply | None:
    delivery = pending.record(message)
    return None if delivery is None else delivery[1]


def test_next_engine_gets_each_request_with_the_tokens_that_were_given() -> None:
    pending = pending_of("a", "b")
    pending.record(token("a", 0, 10))
    pending.record(token("a", 1, 11))
    assert pending.engine_died(["a", "b"], REASON) == []
    resumed = {each.request_id: each for each in pending.take_unsent()}
    assert list(resumed) == ["a", "b"]
    assert resumed["a"].output_ids == [10, 11]
    assert resumed["a"].seed == 7
    assert all(each.is_resumed for each in resumed.values())
    assert pending.take_unsent() == []


def test_request_that_no_engine_has_accepted_is_new_to_the_next_one() -> None:
    pending = PendingRequests()
    pending.add([request("a")], ignore)
    pending.take_unsent()
    pending.engine_died([], REASON)
    assert not pending.take_unsent()[0].is_resumed
    assert news(pending, Accepted(request_id="a")) == Accepted(request_id="a")


def test_second_acceptance_is_no_news_and_late_refusal_is_a_failure() -> None:
    pending = pending_of("a", "b")
    assert news(pending, Accepted(request_id="a")) is None
    refused = news(pending, Rejected(request_id="b", code="queue_full", message="full"))
    assert refused == Failed(request_id="b", error="full")
    assert len(pending) == 1


def test_repeated_tokens_are_dropped_and_the_rest_of_a_message_is_not() -> None:
    pending = pending_of("a")
    logprobs = [TokenLogprobs(-float(index), (), ()) for index in range(3)]
    pending.record(token("a", 0, 10, 11, cached_len=2))
    assert news(pending, token("a", 0, 10)) is None
    assert news(pending, token("a", 1, 11, 12, cached_len=0, logprobs=logprobs[1:])) == token(
        "a", 2, 12, cached_len=2, logprobs=logprobs[2:]
    )


def test_time_goes_on_with_the_next_engine() -> None:
    pending = pending_of("a", "new")
    pending.record(token("a", 0, 10, timing=Timing(1, 2, 0)))
    pending.engine_died([], REASON)
    pending.take_unsent()
    told = [news(pending, token("a", 1 + i, 11, timing=Timing(0, 4, i))) for i in range(2)]
    assert [each.timing for each in told] == [Timing(1, 2, 4), Timing(1, 2, 5)]
    first = news(pending, token("new", 0, 10, timing=Timing(3, 4, 0)))
    assert first.timing == Timing(3, 4, 0)


def test_end_of_a_request_is_told_once_and_forgets_it() -> None:
    pending = pending_of("a")
    last = token("a", 0, 10, finish_reason=FinishReason.LENGTH)
    assert news(pending, last) == last
    assert news(pending, last) is None
    assert len(pending) == 0


def test_prompt_whose_logprobs_were_given_is_not_scored_again() -> None:
    pending = PendingRequests()
    pending.add([request("a", prompt_logprobs=1)], ignore)
    pending.take_unsent()
    pending.record(Accepted(request_id="a"))
    pending.engine_died([], REASON)
    assert pending.take_unsent()[0].params.prompt_logprobs == 1
    pending.record(token("a", 0, 10))
    pending.engine_died([], REASON)
    assert pending.take_unsent()[0].params.prompt_logprobs is None


def test_request_nobody_waits_for_is_not_sent_again() -> None:
    pending = pending_of("a", "b")
    assert pending.forget(["a", "unknown"]) == ["a"]
    pending.engine_died(["a"], REASON)
    assert pending.forget(["b"]) == []  # the next engine has not heard of it
    assert pending.take_unsent() == []


def suspects(requests: Sequence[AddRequest]) -> list[str]:
    return [each.request_id for each in requests if each.is_suspect]


def test_request_in_two_deadly_steps_is_suspect_until_it_has_a_token() -> None:
    pending = pending_of("a", "b", "c")
    pending.engine_died(["b"], REASON)
    assert suspects(pending.take_unsent()) == []
    pending.engine_died(["b"], REASON)
    sent = pending.take_unsent()
    assert (ids(sent), suspects(sent)) == (["a", "b", "c"], ["b"])
    pending.record(token("b", 0, 10))
    pending.engine_died(["b"], REASON)
    assert suspects(pending.take_unsent()) == []


def test_request_that_no_engine_has_accepted_may_be_suspect() -> None:
    pending = PendingRequests()
    pending.add([request("a")], ignore)
    for _ in range(2):
        pending.take_unsent()
        pending.engine_died(["a"], REASON)
    assert suspects(pending.take_unsent()) == ["a"]


def test_request_that_kills_an_engine_alone_is_given_up_and_the_others_go_on() -> None:
    pending = pending_of("a", "b", "c")
    for _ in range(2):
        assert pending.engine_died(["a", "b"], REASON) == []
        sent = pending.take_unsent()
    assert suspects(sent) == ["a", "b"]
    pending.record(token("a", 0, 10))
    [(_, failed)] = pending.engine_died(["b"], REASON)
    assert (failed.request_id, failed.code) == ("b", "engine_poisoned")
    sent = pending.take_unsent()
    assert (ids(sent), suspects(sent)) == (["a", "c"], [])


def test_request_that_dies_beside_others_is_never_given_up() -> None:
    pending = pending_of("a", "b")
    for _ in range(9):
        assert pending.engine_died(["a", "b"], REASON) == []
        assert ids(pending.take_unsent()) == ["a", "b"]


def test_death_outside_of_steps_blames_nobody() -> None:
    pending = pending_of("a")
    for _ in range(5):
        assert pending.engine_died([], REASON) == []
        assert ids(pending.take_unsent()) == ["a"]


def test_strikes_are_cleared_by_a_token() -> None:
    pending = pending_of("a", "b")
    for index in range(5):
        pending.engine_died(["a"], REASON)
        assert ids(pending.take_unsent()) == ["a", "b"]
        pending.record(token("a", index, 10 + index))
