"""The ledger: each move, and what breaks its invariant."""

import pytest

from legato.core.plan import TokenLogprobs
from legato.core.request import LedgerError, Request, RequestState
from legato.core.sampling_params import FinishReason, SamplingParams


def make_request(
    prompt_len: int = 5, max_tokens: int = 3, prompt_logprobs: int | None = None, **fields: object
) -> Request:
    return Request(
        request_id="r",
        token_ids=list(range(prompt_len)),
        prompt_len=prompt_len,
        max_device_len=prompt_len + max_tokens,
        params=SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs),
        **fields,  # type: ignore[arg-type]
    )


def lengths(request: Request) -> tuple[int, int, int, int]:
    return (request.cached_len, request.device_len, request.extend_len, request.remain_len)


def test_lengths_from_the_first_chunk_to_the_last_token() -> None:
    request = make_request(prompt_len=5, max_tokens=3)
    assert (request.state, lengths(request)) == (RequestState.WAITING, (0, 0, 0, 8))

    request.start(row=2, hit_len=1)
    assert (request.state, request.row, lengths(request)) == (RequestState.PREFILLING, 2, (1, 1, 0, 7))
    request.grant_prefill(2)
    assert lengths(request) == (1, 3, 2, 5)
    request.complete_chunk()
    assert lengths(request) == (3, 3, 0, 5)
    assert not request.can_decode
    request.grant_prefill(2)
    request.complete_one()
    assert (request.state, lengths(request)) == (RequestState.DECODING, (5, 6, 1, 2))
    assert request.can_decode  # though the first token's value is not known yet

    request.complete_one()
    request.append_host(70)
    assert (request.output_len, lengths(request)) == (1, (6, 7, 1, 1))
    request.complete_one()
    assert lengths(request) == (7, 8, 1, 0)
    assert not request.can_decode
    request.append_host(71)
    request.append_host(72)
    request.finish(FinishReason.LENGTH)
    assert (request.state, request.row) == (RequestState.FINISHED, None)
    assert request.token_ids == [0, 1, 2, 3, 4, 70, 71, 72]


def test_skipping_what_others_computed_moves_both_lengths_and_leaves_the_last_token() -> None:
    request = make_request(prompt_len=6, max_tokens=3)
    request.start(row=0, hit_len=1)
    request.skip_cached(2)
    assert (request.state, lengths(request)) == (RequestState.PREFILLING, (3, 3, 0, 6))
    with pytest.raises(LedgerError, match="3 tokens to skip after 3 of 6 known, 0 granted"):
        request.skip_cached(3)
    request.grant_prefill(1)
    with pytest.raises(LedgerError, match="1 tokens to skip after 3 of 6 known, 1 granted"):
        request.skip_cached(1)


def test_one_output_token_is_never_decoded() -> None:
    request = make_request(prompt_len=2, max_tokens=1)
    request.start(row=0, hit_len=0)
    request.grant_prefill(2)
    request.complete_one()
    assert (request.remain_len, request.can_decode) == (0, False)


def test_preempted_request_keeps_its_tokens_and_starts_again() -> None:
    request = make_request(prompt_len=3, max_tokens=4, pages_written=1)
    request.start(row=1, hit_len=0)
    request.grant_prefill(3)
    request.complete_one()
    request.append_host(9)
    request.complete_one()

    request.preempt()
    assert (request.state, request.row, lengths(request)) == (RequestState.WAITING, None, (0, 0, 0, 7))
    assert (request.num_preemptions, request.pages_written) == (1, 0)
    request.append_host(8)  # it was in flight

    request.start(row=0, hit_len=2)
    assert not request.can_decode
    request.grant_prefill(3)
    request.complete_one()
    assert lengths(request) == (5, 6, 1, 1)
    assert request.can_decode


def test_request_that_wants_no_token_decodes_in_no_step() -> None:
    request = make_request(prompt_len=5, max_tokens=0)
    request.start(row=0, hit_len=0)
    request.grant_prefill(3)
    with pytest.raises(LedgerError, match="r: 2 tokens are still to be computed"):
        request.complete_prompt()
    request.complete_chunk()
    request.grant_prefill(2)
    request.complete_prompt()
    assert (request.state, lengths(request)) == (RequestState.DECODING, (5, 5, 0, 0))
    assert not request.can_decode
    request.finish(FinishReason.LENGTH)


def test_scored_request_scores_every_position_but_the_last_once() -> None:
    request = make_request(prompt_len=7, max_tokens=2, prompt_logprobs=0)
    assert (request.is_scoring, request.hit_end) == (True, 0)
    request.start(row=0, hit_len=0)
    request.grant_prefill(3)
    assert request.scored == range(3)
    request.complete_chunk()
    request.preempt()
    request.append_logprobs([TokenLogprobs(-1.0, (), ())] * 3)  # they were in flight

    assert (request.is_scoring, request.hit_end) == (True, 3)
    request.start(row=0, hit_len=2)
    request.grant_prefill(3)
    assert request.scored == range(3, 5)
    request.complete_chunk()
    request.grant_prefill(2)
    assert request.scored == range(5, 6)  # position 6 gives the first token
    request.complete_one()
    assert (request.is_scoring, request.scored, request.hit_end) == (False, range(0), 6)


@pytest.mark.parametrize(("prompt_len", "prompt_logprobs"), [(1, 5), (5, None)])
def test_prompt_without_scores_takes_any_hit_but_its_last_token(
    prompt_len: int, prompt_logprobs: int | None
) -> None:
    request = make_request(prompt_len=prompt_len, prompt_logprobs=prompt_logprobs)
    assert (request.is_scoring, request.hit_end) == (False, prompt_len - 1)


def test_scored_request_takes_no_hit_and_no_logprobs_that_were_not_computed() -> None:
    request = make_request(prompt_len=5, prompt_logprobs=3)
    with pytest.raises(LedgerError, match="r: hit of 1 tokens, may be 0"):
        request.start(row=0, hit_len=1)
    request.start(row=0, hit_len=0)
    with pytest.raises(LedgerError, match="1 tokens to skip after 0 of 5 known, 0 granted"):
        request.skip_cached(1)
    with pytest.raises(LedgerError, match="r: logprobs of 1 prompt tokens, computed for 0"):
        request.append_logprobs([TokenLogprobs(-1.0, (), ())])


def test_more_tokens_than_known_cannot_be_granted() -> None:
    request = make_request(prompt_len=5)
    request.start(row=0, hit_len=0)
    with pytest.raises(LedgerError, match="r: 6 tokens granted, 5 known"):
        request.grant_prefill(6)


def test_fewer_than_none_cannot_be_granted() -> None:
    request = make_request()
    request.start(row=0, hit_len=2)
    with pytest.raises(LedgerError, match="cached 2 <= device 1"):
        request.grant_prefill(-1)


@pytest.mark.parametrize("hit_len", [-1, 9])
def test_hit_must_lie_in_the_request(hit_len: int) -> None:
    with pytest.raises(LedgerError, match=f"cached {hit_len}"):
        make_request(prompt_len=5, max_tokens=3).start(row=0, hit_len=hit_len)


def test_no_token_is_opened_or_appended_beyond_the_room() -> None:
    request = make_request(prompt_len=1, max_tokens=1)
    request.start(row=0, hit_len=0)
    request.grant_prefill(1)
    request.complete_one()
    request.append_host(5)
    with pytest.raises(LedgerError, match="device 3 <= max 2"):
        request.complete_one()
    with pytest.raises(LedgerError, match="3 tokens, room for 2"):
        request.append_host(6)


def in_state(state: RequestState) -> Request:
    request = make_request()
    if state is not RequestState.WAITING:
        request.start(row=0, hit_len=0)
    if state in (RequestState.DECODING, RequestState.FINISHED):
        request.grant_prefill(5)
        request.complete_one()
    if state is RequestState.FINISHED:
        request.finish(FinishReason.STOP)
    assert request.state is state
    return request


MOVES = {
    "start": (lambda r: r.start(row=1, hit_len=0), {RequestState.WAITING}),
    "grant_prefill": (lambda r: r.grant_prefill(1), {RequestState.PREFILLING}),
    "complete_chunk": (lambda r: r.complete_chunk(), {RequestState.PREFILLING}),
    "complete_one": (lambda r: r.complete_one(), {RequestState.PREFILLING, RequestState.DECODING}),
    "append_logprobs": (lambda r: r.append_logprobs([]), set(RequestState) - {RequestState.FINISHED}),
    "preempt": (lambda r: r.preempt(), {RequestState.PREFILLING, RequestState.DECODING}),
    "finish": (
        lambda r: r.finish(FinishReason.ABORT),
        {RequestState.WAITING, RequestState.PREFILLING, RequestState.DECODING},
    ),
}


@pytest.mark.parametrize("state", RequestState)
@pytest.mark.parametrize("name", MOVES)
def test_each_move_is_allowed_in_its_states_alone(name: str, state: RequestState) -> None:
    move, allowed = MOVES[name]
    request = in_state(state)
    if state in allowed:
        move(request)
    else:
        with pytest.raises(LedgerError, match=f"r is {state}, expected"):
            move(request)


def test_age_is_priority_then_arrival() -> None:
    ages = [make_request(priority=p, arrival=a).age_key for p, a in [(1, 0), (0, 3), (0, 2), (-1, 9)]]
    assert sorted(ages) == [(-1, 9), (0, 2), (0, 3), (1, 0)]
