"""From a message to an open ledger."""

import pytest

from legato.core.errors import RequestError
from legato.core.request import Request, RequestState
from legato.core.request_limits import RequestLimits
from legato.core.sampling_params import SamplingParams
from legato.engine.intake import open_request
from legato.ipc.messages import AddRequest

LIMITS = RequestLimits(max_model_len=20, pool_len=100, vocab_size=10)
EOS_IDS = frozenset({1, 2})


def opened(**params: object) -> Request:
    message = AddRequest(
        request_id="r",
        token_ids=[3, 4, 5],
        params=SamplingParams(**params),
        seed=77,
        priority=-2,
        cache_salt="s",
        tenant="t",
    )
    return open_request(message, LIMITS, EOS_IDS)


def test_ledger_begins_with_what_the_message_says() -> None:
    request = opened(max_tokens=4)
    assert (request.request_id, request.token_ids, request.prompt_len) == ("r", [3, 4, 5], 3)
    assert (request.max_device_len, request.seed, request.priority, request.cache_salt) == (7, 77, -2, "s")
    assert request.tenant == "t"
    assert (request.state, request.row, request.output_len) == (RequestState.WAITING, None, 0)


def test_without_max_tokens_the_context_is_the_limit() -> None:
    assert opened(max_tokens=None).max_device_len == 20


@pytest.mark.parametrize(
    ("params", "ending_ids"),
    [
        ({}, {1, 2}),
        ({"stop_token_ids": (7, 2)}, {1, 2, 7}),
        ({"ignore_eos": True}, set()),
        ({"ignore_eos": True, "stop_token_ids": (1, 8)}, {1, 8}),
    ],
)
def test_ending_ids(params: dict[str, object], ending_ids: set[int]) -> None:
    assert opened(**params).ending_ids == ending_ids


def test_request_whose_every_token_ends_it_has_none_to_fill_min_tokens() -> None:
    every_other = tuple(token_id for token_id in range(10) if token_id not in EOS_IDS)
    assert len(opened(stop_token_ids=every_other).ending_ids) == 10
    with pytest.raises(RequestError, match="stop_token_ids") as refusal:
        opened(stop_token_ids=every_other, min_tokens=1)
    assert refusal.value.param == "stop_token_ids"


def test_ledger_does_not_share_its_list_with_the_message() -> None:
    message = AddRequest(request_id="r", token_ids=[3], params=SamplingParams(), seed=0)
    open_request(message, LIMITS, EOS_IDS).append_host(9)
    assert message.token_ids == [3]
