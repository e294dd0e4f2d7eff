"""The works that servers are measured with: seeded prompts of token ids, and how many tokens each gets."""

import random
from collections.abc import Callable
from dataclasses import dataclass

LOWEST_ID = 300  # below are, in most vocabularies, special tokens and single bytes

Lengths = list[tuple[int, int]]  # tokens of a prompt, tokens of its answer


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """A prompt and the number of tokens that its answer must have."""

    token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """Requests that are sent at once.

    make_lengths  the same for every repetition, so that repetitions compare
    prefix_len    tokens that all prompts begin with, new in each repetition, before those of their own
    """

    name: str
    meaning: str
    make_lengths: Callable[[random.Random], Lengths]
    prefix_len: int = 0

    def requests(self, repetition: int, *, seed: int, vocab_size: int) -> list[WorkRequest]:
        """A pure function of its arguments; no two repetitions share a prompt."""
        lengths = self.make_lengths(random.Random(f"{seed} {self.name}"))
        rng = random.Random(f"{seed} {self.name} {repetition}")
        lowest = min(LOWEST_ID, vocab_size // 2)

        def token_ids(num: int) -> list[int]:
            return [rng.randrange(lowest, vocab_size) for _ in range(num)]

        prefix = token_ids(self.prefix_len)
        return [WorkRequest(prefix + token_ids(prompt_len), max_tokens) for prompt_len, max_tokens in lengths]


def _short_prompts(num: int) -> Work:
    return Work(
        f"W1_{num}",
        f"{num} prompt{'s' if num > 1 else ''} of 5 to 8 tokens, 50 new tokens each",
        lambda rng: [(rng.randint(5, 8), 50) for _ in range(num)],
    )


def _mixed(rng: random.Random) -> Lengths:
    return [(rng.randint(32, 512), rng.randint(16, 128)) for _ in range(64)]


_ALL = (
    *map(_short_prompts, (1, 4, 16, 64)),
    Work("W2", "a prompt of 32 tokens, 256 new tokens: one stream", lambda _: [(32, 256)]),
    Work("W3", "a prompt of 2,000 tokens, 1 new token", lambda _: [(2000, 1)]),
    Work("W4", "64 prompts of 32 to 512 tokens, 16 to 128 new tokens: a mixed load", _mixed),
    Work(
        "W5",
        "32 prompts that share 1,024 tokens never seen before and have 32 of their own, 32 new tokens each",
        lambda _: [(32, 32)] * 32,
        prefix_len=1024,
    ),
)
WORKS = {work.name: work for work in _ALL}
