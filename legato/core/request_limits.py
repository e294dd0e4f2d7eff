"""What an engine can take, and the check of a request against it: the same in both processes."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato.core.errors import RequestError, counted
from legato.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """max_model_len and pool_len are tokens; the pool holds K/V for all tokens of a request but the last one
    that it makes.
    """

    max_model_len: int
    pool_len: int
    vocab_size: int

    def max_device_len(self, token_ids: Sequence[int], params: SamplingParams) -> int:
        """The length to which the request may grow: prompt and allowed output.

        Raises RequestError when an id is not in the vocabulary or the request can never fit.
        """
        self._check_ids(token_ids, params)
        prompt_len = len(token_ids)
        if params.max_tokens is None:
            room = min(self.max_model_len, self.pool_len + 1) - prompt_len
            wanted = prompt_len + max(room, 1)
        else:
            wanted = prompt_len + params.max_tokens
        asked = f"{counted(prompt_len, 'prompt token')} and {wanted - prompt_len} of output"
        if wanted > self.max_model_len:
            raise RequestError(
                f"{asked} are {wanted}, above the model's context of {self.max_model_len} tokens;"
                " shorten the prompt or lower max_tokens",
                param="prompt",
                code="context_length_exceeded",
            )
        kv_len = max(prompt_len, wanted - 1)
        if kv_len > self.pool_len:
            raise RequestError(
                f"{asked} need K/V for {kv_len} tokens, and the whole pool holds {self.pool_len};"
                " shorten the prompt, lower max_tokens, or raise --kv-cache-memory-bytes or --num-pages",
                param="prompt",
                code="kv_pool_exceeded",
            )
        return wanted

    def _check_ids(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        if not token_ids:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        fields = {
            "prompt": token_ids,
            "stop_token_ids": params.stop_token_ids,
            "logit_bias": params.logit_bias,
        }
        for param, ids in fields.items():
            kinds = set(map(type, ids)) - {int}
            if kinds:
                raise RequestError(
                    f"{param} holds a {kinds.pop().__name__}; token ids are whole numbers (int)",
                    param=param,
                    code="invalid_token_id",
                )
            for token_id in (min(ids, default=0), max(ids, default=0)):
                if not 0 <= token_id < self.vocab_size:
                    raise RequestError(
                        f"token id {token_id} in {param} is not in the vocabulary of {self.vocab_size}",
                        param=param,
                        code="invalid_token_id",
                    )
