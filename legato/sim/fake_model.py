"""A model that is one hash: what follows a prefix is known at once, whatever batch computes it."""

from collections.abc import Container, Iterable, Sequence

EOS = 7
FIRST_ID, NUM_IDS = 100, 800  # the other tokens that it says
_MASK = (1 << 64) - 1


def extend(key: int, token_id: int) -> int:
    """Key of a prefix that is one token longer. Source: splitmix64."""
    key = (key ^ token_id) + 0x9E3779B97F4A7C15 & _MASK
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    return key ^ key >> 27


def key_of(token_ids: Iterable[int]) -> int:
    key = 0
    for token_id in token_ids:
        key = extend(key, token_id)
    return key


def next_token(key: int, seed: int = 0) -> int:
    """What the model says after a prefix, to a request with this seed: now and then the end."""
    value = extend(key, seed)
    return EOS if value % 40 == 0 else FIRST_ID + value % NUM_IDS


def score(key: int) -> float:
    """The logprob that it gives the last token of a prefix, after those before it."""
    return -float(key % 997)


def expected_output(
    prompt: Iterable[int], max_tokens: int, seed: int = 0, ending_ids: Container[int] = (EOS,)
) -> list[int]:
    """The tokens that a request must get, whoever computes them with whom."""
    key = key_of(prompt)
    output: list[int] = []
    while len(output) < max_tokens and not (output and output[-1] in ending_ids):
        output.append(next_token(key, seed))
        key = extend(key, output[-1])
    return output


def expected_scores(prompt: Sequence[int]) -> list[float]:
    """Of every token of a prompt but its first."""
    return [score(key_of(prompt[:end])) for end in range(2, len(prompt) + 1)]
