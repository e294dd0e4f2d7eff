"""The diagram of docs/request_states.md against the ledger: each arrow can be gone, and no other."""

import inspect

import pytest

from legato.core.request import LedgerError, Request, RequestState
from legato.core.sampling_params import FinishReason, SamplingParams
from tests.docs.references import ROOT, transitions

DIAGRAM = transitions((ROOT / "docs/request_states.md").read_text(encoding="utf-8"))
METHODS = [
    name for name, value in vars(Request).items() if inspect.isfunction(value) and not name.startswith("_")
]
ARGUMENTS: dict[str, dict[str, object]] = {
    "start": {"row": 0, "hit_len": 0},
    "grant_prefill": {"num_tokens": 1},
    "skip_cached": {"num_tokens": 0},
    "append_host": {"token_id": 5},
    "append_logprobs": {"logprobs": []},
    "finish": {"reason": FinishReason.LENGTH},
}


def request_in(state: RequestState) -> Request:
    """A request with four known tokens; a waiting one was preempted while its token was in flight."""
    request = Request(
        request_id="r", token_ids=[1, 2, 3, 4], prompt_len=4, max_device_len=8, params=SamplingParams()
    )
    request.start(row=0, hit_len=0)
    request.grant_prefill(3)
    match state:
        case RequestState.DECODING:
            call(request, "complete_one")
        case RequestState.WAITING:
            call(request, "complete_one")
            request.preempt()
        case RequestState.FINISHED:
            request.finish(FinishReason.ABORT)
    assert request.state is state
    return request


def call(request: Request, method: str) -> None:
    """Call a method with arguments that fit, so that only the state can be wrong."""
    if method == "skip_cached" and request.extend_len > 0:
        request.complete_chunk()
    if method in ("complete_one", "complete_prompt") and request.state is RequestState.PREFILLING:
        request.grant_prefill(len(request.token_ids) - request.device_len)
    if method == "complete_prompt":
        request.max_device_len = request.device_len
    getattr(request, method)(**ARGUMENTS.get(method, {}))


def test_the_diagram_knows_every_state_and_every_move() -> None:
    assert {state for origin, target, _ in DIAGRAM for state in (origin, target)} == set(RequestState)
    assert {method for _, _, method in DIAGRAM} == set(METHODS)


@pytest.mark.parametrize(("origin", "target", "method"), sorted(DIAGRAM))
def test_every_arrow_can_be_gone(origin: str, target: str, method: str) -> None:
    request = request_in(RequestState(origin))
    call(request, method)
    assert request.state == target


@pytest.mark.parametrize(
    ("state", "method"),
    [
        (state, method)
        for state in RequestState
        for method in METHODS
        if all((origin, move) != (state, method) for origin, _, move in DIAGRAM)
    ],
)
def test_what_has_no_arrow_is_an_error(state: RequestState, method: str) -> None:
    request = request_in(state)
    with pytest.raises(LedgerError):
        call(request, method)
