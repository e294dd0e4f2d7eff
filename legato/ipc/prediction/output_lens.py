"""How many tokens answers are likely to have, by those that have ended and by what each request asks for."""

from typing import NamedTuple, Self

from legato.core.sampling_params import SamplingParams

UNSEEN_LEN = 512  # what an answer has, if it may, as far as is known before one has ended
OUTLIVED = 1.5  # what has passed the mean is likely to have so many times the tokens that it has
_WEIGHT = 0.1  # of the latest answer
_UNSEEN_WEIGHT = 0.05  # of UNSEEN_LEN, which fades as answers end: half an answer's


class Bounds(NamedTuple):
    """Tokens that a request makes at least and at most."""

    least: int
    most: int

    @classmethod
    def of(cls, params: SamplingParams, room: int) -> Self:
        """room  tokens that the context has beyond the prompt"""
        most = max(1, room if params.max_tokens is None else params.max_tokens)
        may_stop = params.stop or params.stop_token_ids or params.grammar is not None
        return cls(most if params.ignore_eos and not may_stop else min(params.min_tokens, most), most)


class OutputLens:
    """Tokens made, over answers that ended by themselves: one that was cut at its limit adds tokens alone.

    Recent answers count most. So short limits do not make answers without one seem short.
    """

    def __init__(self) -> None:
        self._tokens = _UNSEEN_WEIGHT * UNSEEN_LEN
        self._ends = _UNSEEN_WEIGHT

    def learn(self, output_len: int, bounds: Bounds) -> None:
        """Take in an answer that has ended; one whose length was certain tells nothing."""
        if bounds.least == bounds.most:
            return
        self._tokens += _WEIGHT * (output_len - self._tokens)
        self._ends += _WEIGHT * ((output_len < bounds.most) - self._ends)

    def left_len(self, bounds: Bounds, num_made: int = 0) -> int:
        """Tokens that a request is likely to make after those that it has; at least 1."""
        mean = self._tokens / max(self._ends, 1e-9)
        likely_len = min(max(bounds.least, mean, OUTLIVED * num_made), bounds.most)
        return max(1, round(likely_len) - num_made)
