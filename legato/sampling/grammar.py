"""Which tokens a row's grammar allows next; its state follows the token pool, so nothing leaves the batch."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from legato.core.errors import LegatoError, ModelError
from legato.core.plan import RowError, RowStart
from legato.kernels.sampling import EVERY_TOKEN, AllowedTokens

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

    from legato.sampling.row_sampler import SampleRow, SamplingBatch

logger = logging.getLogger(__name__)

FAILED = "grammar_failed"
FULFILLED = ("NoExtension", "NoExtensionBias", "EndOfSentence")  # ends of a grammar that are no fault
BITS = 32  # of a word of a mask


@dataclass(slots=True)
class _RowState:
    """A row's grammar, and how many tokens of its request it has passed."""

    matcher: "Future[LLMatcher]"
    num_read: int


class _NoTokenError(Exception):
    """A row's grammar leaves it no next token."""


def _reason(matcher: "LLMatcher") -> str:
    from legato.modelfiles.grammars import reason_of

    return reason_of(matcher)


class RowGrammars:
    """The grammars of running requests, by row of the token pool.

    tokenizer   the model's tokenizer.json, read with the first grammar; None: its tokens are numbers alone
    eos_ids     each of them may end an answer that is whole
    vocab_size  tokens that have a logit: they may be fewer than the tokenizer has, or more
    """

    def __init__(
        self, tokenizer: Path | None = None, eos_ids: frozenset[int] = frozenset(), vocab_size: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        self._rows: dict[int, _RowState] = {}
        self._builder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    def begin(self, row_starts: Iterable[tuple[int, RowStart]]) -> None:
        """Build the grammars of requests that got their rows, in a thread while prompts are computed."""
        for row, start in row_starts:
            self._rows.pop(row, None)
            if start.params.grammar is not None:
                matcher = self._builder.submit(self._build, start.params.grammar)
                self._rows[row] = _RowState(matcher, start.prompt_len)

    def allowed(
        self, batch: "SamplingBatch", token_pool: NDArray[np.int32]
    ) -> tuple[AllowedTokens, dict[int, RowError]]:
        """What the rows of a step may become, and which of them can become nothing, and why."""
        if not batch.constrained:
            return EVERY_TOKEN, {}
        errors: dict[int, RowError] = {}
        matchers: dict[int, LLMatcher] = {}
        for index in batch.constrained:
            row = batch.rows[index]
            try:
                matchers[index] = self._advance(self._rows[row.row], token_pool[row.row, : row.position])
            except _NoTokenError as error:
                errors[index] = RowError(str(error), FAILED)
        masks = self._masks(list(matchers.values()))
        mask_rows = np.full(len(batch.rows), -1, np.int32)
        for place, (index, matcher) in enumerate(matchers.items()):
            try:
                self._narrow(masks[place], matcher, batch.rows[index])
                mask_rows[index] = place
            except _NoTokenError as error:
                errors[index] = RowError(str(error), FAILED)
        return AllowedTokens(masks, mask_rows), errors

    def _advance(self, state: _RowState, known: NDArray[np.int32]) -> "LLMatcher":
        """Let a row's grammar pass the tokens that came since the step before."""
        try:
            matcher = state.matcher.result()
        except LegatoError as error:
            raise _NoTokenError(f"the grammar cannot be used: {error}") from error
        except Exception as error:  # a fault of ours at one row's grammar must not end everybody's engine
            logger.exception("a grammar could not be built")
            raise _NoTokenError("the grammar cannot be used; the log says why") from error
        new_ids = known[state.num_read :].tolist()
        state.num_read = len(known)
        if new_ids and not matcher.consume_tokens(new_ids):
            raise _NoTokenError(f"the grammar cannot be followed any further: {_reason(matcher)}")
        return matcher

    def _masks(self, matchers: "Sequence[LLMatcher]") -> NDArray[np.uint32]:
        """Those of several rows side by side, without the interpreter's lock."""
        if not matchers:
            return EVERY_TOKEN.masks
        masks = np.zeros((len(matchers), self._num_words), np.uint32)
        pairs = [(matcher, place) for place, matcher in enumerate(matchers)]
        self._threads.unsafe_compute_mask_ptr(pairs, masks.ctypes.data, masks.strides[0], len(masks))
        return masks

    def _narrow(self, mask: NDArray[np.uint32], matcher: "LLMatcher", row: "SampleRow") -> None:
        """Leave in a mask what the request's other settings allow; _NoTokenError when that is nothing."""
        # Where a matcher cannot go on, its mask is that of an end, as if the answer were whole.
        if matcher.is_error() or (matcher.is_stopped() and matcher.stop_reason() not in FULFILLED):
            raise _NoTokenError(f"the grammar cannot be followed any further: {_reason(matcher)}")
        params, output_len = row.start.params, row.position - row.start.prompt_len
        mask &= self._can_be_sampled
        if params.ignore_eos and (mask & ~self._ends).any():
            mask &= ~self._ends  # the end comes where the grammar leaves nothing else
        if not mask.any():
            raise _NoTokenError(f"after {output_len} tokens the grammar allows none that the model has")
        if output_len < params.min_tokens:
            mask &= ~self._bits(row.start.ending_ids)
            if not mask.any():
                raise _NoTokenError(
                    f"after {output_len} tokens the grammar allows nothing but the end of the answer,"
                    f" and min_tokens is {params.min_tokens}"
                )

    def _build(self, grammar: str) -> "LLMatcher":
        from legato.modelfiles.grammars import build_matcher  # see there why not before

        return build_matcher(self._table, grammar)

    @cached_property
    def _table(self) -> "LLTokenizer":
        if self._tokenizer is None:
            raise ModelError("this model has no tokenizer")
        from legato.modelfiles.grammars import open_token_table

        return open_token_table(self._tokenizer, self._eos_ids)

    @cached_property
    def _threads(self) -> "LLExecutor":
        from llguidance import LLExecutor

        return LLExecutor()

    @cached_property
    def _num_words(self) -> int:
        return -(-self._table.vocab_size // BITS)

    @cached_property
    def _ends(self) -> NDArray[np.uint32]:
        return self._bits(self._table.eos_tokens)

    @cached_property
    def _can_be_sampled(self) -> NDArray[np.uint32]:
        return self._bits(range(min(self._vocab_size, self._table.vocab_size)))

    def _bits(self, token_ids: Iterable[int]) -> NDArray[np.uint32]:
        """A mask of these tokens, as far as the table has them."""
        flags = np.zeros(self._num_words * BITS, np.uint8)
        flags[[token_id for token_id in token_ids if token_id < len(flags)]] = 1
        return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
