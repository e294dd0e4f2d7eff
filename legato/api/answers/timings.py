"""What an answer tells of its own speed, with llama.cpp's names where it has them."""

from collections.abc import Collection
from typing import Any

from legato.core.timing import Timing


def timings_json(timings: Collection[Timing], usage: dict[str, Any]) -> dict[str, float]:
    """Times of one answer or of several, and rates.

    Of several answers each time is that of the one that took longest. A first token is the prompt's
    work, so the rate of prediction is that of the tokens after it.

    usage  theirs, as usage_json gives it
    """
    queue_ms, prompt_ms, predicted_ms = (1000 * max(each[part] for each in timings) for part in range(3))
    cache_n = usage["prompt_tokens_details"]["cached_tokens"]
    prompt_n = usage["prompt_tokens"] - cache_n
    num_later = max(usage["completion_tokens"] - len(timings), 0)
    return {
        "queue_ms": queue_ms,
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _quotient(prompt_ms, prompt_n),
        "prompt_per_second": 1000 * _quotient(prompt_n, prompt_ms),
        "predicted_n": usage["completion_tokens"],
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _quotient(predicted_ms, num_later),
        "predicted_per_second": 1000 * _quotient(num_later, predicted_ms),
    }


def _quotient(value: float, divisor: float) -> float:
    return value / divisor if divisor else 0.0
