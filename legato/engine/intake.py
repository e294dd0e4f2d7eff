"""AddRequest becomes a Request, or the reason why not."""

from collections.abc import Iterable

from legato.core.errors import RequestError
from legato.core.request import Request
from legato.core.request_limits import RequestLimits
from legato.ipc.messages import AddRequest


def open_request(message: AddRequest, limits: RequestLimits, eos_ids: Iterable[int]) -> Request:
    """Open the ledger of a new request. Raises RequestError when it can never be served."""
    params = message.params
    max_device_len = limits.max_device_len(message.token_ids, params)
    # A grammar says where an answer may end, and needs a token to say it with.
    ends_by_eos = params.grammar is not None or not params.ignore_eos
    ending_ids = frozenset(params.stop_token_ids) | (frozenset(eos_ids) if ends_by_eos else frozenset())
    if params.min_tokens and len(ending_ids) >= limits.vocab_size:
        raise RequestError(
            "every token ends the answer, so none is left to fill min_tokens; name fewer stop_token_ids",
            param="stop_token_ids",
        )
    return Request(
        request_id=message.request_id,
        token_ids=message.token_ids + message.output_ids,
        prompt_len=len(message.token_ids),
        max_device_len=max_device_len,
        params=params,
        seed=message.seed,
        tenant=message.tenant,
        priority=message.priority,
        cache_salt=message.cache_salt,
        ending_ids=ending_ids,
        is_suspect=message.is_suspect,
    )
