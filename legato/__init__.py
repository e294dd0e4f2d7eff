"""Continuous batching without gaps, on the machine you have."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legato.core.plan import TokenLogprobs
    from legato.core.sampling_params import SamplingParams
    from legato.frontend.llm import LLM, Completion

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "SamplingParams", "TokenLogprobs", "__version__"]


def __getattr__(name: str) -> Any:
    """Import on first use: `legato.engine` must not pay for the frontend, nor a flag's help for either."""
    if name in ("LLM", "Completion"):
        from legato.frontend import llm

        return getattr(llm, name)
    if name == "SamplingParams":
        from legato.core.sampling_params import SamplingParams

        return SamplingParams
    if name == "TokenLogprobs":
        from legato.core.plan import TokenLogprobs

        return TokenLogprobs
    raise AttributeError(f"module 'legato' has no attribute {name!r}")
