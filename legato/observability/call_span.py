"""What a span tells of one call that generates: numbers and names, never a text."""

import time
from collections.abc import Callable

from legato.core.sampling_params import SamplingParams
from legato.observability.tracing import Span, Value


class CallSpan:
    """Notes the deltas of a call's answers, and tells the span of them once, at the end.

    received_at  of the call's head, by `clock`
    """

    def __init__(
        self, span: Span, received_at: float, num_answers: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._span = span
        self._received_at = received_at
        self._clock = clock
        self._finish_reasons = ["abort"] * num_answers  # until it is known better
        self._output_tokens = 0
        self._cached_tokens: dict[int, int] = {}  # by answer
        self._queue_s: float | None = None
        self._ttft_s: float | None = None
        self._is_open = True

    def note(
        self, index: int, *, num_tokens: int, has_text: bool, cached_tokens: int, queue_s: float
    ) -> None:
        """A delta of answer `index`; queue_s is of its request."""
        self._output_tokens += num_tokens
        self._cached_tokens[index] = cached_tokens
        if self._queue_s is None:
            self._queue_s = queue_s
        if has_text and self._ttft_s is None:
            self._ttft_s = self._clock() - self._received_at

    def finish(self, index: int, reason: str) -> None:
        self._finish_reasons[index] = reason

    def fail(self, error_type: str, *, is_ours: bool) -> None:
        self._finish_reasons = [each if each != "abort" else "error" for each in self._finish_reasons]
        self._span.fail(error_type, is_ours=is_ours)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        told: dict[str, Value] = {
            "gen_ai.usage.output_tokens": self._output_tokens,
            "gen_ai.usage.cache_read.input_tokens": sum(self._cached_tokens.values()),
            "gen_ai.response.finish_reasons": self._finish_reasons,
            "gen_ai.latency.e2e": self._clock() - self._received_at,
        }
        if self._queue_s is not None:
            told["gen_ai.latency.time_in_queue"] = self._queue_s
        if self._ttft_s is not None:
            told["gen_ai.latency.time_to_first_token"] = self._ttft_s
        self._span.tell(told)


def request_attributes(model: str, params: SamplingParams, n: int) -> dict[str, Value]:
    """What was asked for, with the model's defaults where the call named nothing."""
    told: dict[str, Value] = {
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.choice.count": n,
    }
    if params.max_tokens is not None:
        told["gen_ai.request.max_tokens"] = params.max_tokens
    if params.seed is not None and -(2**63) <= params.seed < 2**63:  # what OTLP can say
        told["gen_ai.request.seed"] = params.seed
    return told
