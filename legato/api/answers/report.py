"""What an answer tells beside its text, as its client asked."""

from dataclasses import dataclass

from legato.frontend.generator import Prompt, Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything is off until it is asked for.

    n                   answers to each prompt
    echo                the text of the prompt stands before that of the answer
    logprobs            how many of the most probable tokens stand beside each token; None = no logprobs
    prompt_logprobs     the same, for the tokens of the prompt
    token_ids           the ids of prompt and answer
    tokens_as_ids       logprobs name tokens by their ids, not their texts
    include_usage       a stream ends with a chunk with the usage of the whole call
    continuous_usage    every chunk has the usage so far
    timings             the answer, or the last chunk of each choice, tells where its time went
    timings_per_token   every chunk does
    """

    n: int = 1
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    timings: bool = False
    timings_per_token: bool = False


def echoed_text(prompt: Prompt, vocabulary: Vocabulary | None) -> str:
    """The text of a prompt: as it was given, or what its ids stand for."""
    if isinstance(prompt, str):
        return prompt
    if vocabulary is None:
        return ""
    return b"".join(map(vocabulary.token_bytes, prompt)).decode(errors="replace")
