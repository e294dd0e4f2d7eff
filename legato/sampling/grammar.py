"""Which tokens a row's grammar allows next; its worker finds out while the forward computes."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from legato.core.plan import RowError, RowStart
from legato.kernels.sampling import EVERY_TOKEN, AllowedTokens
from legato.sampling.grammar_client import GrammarClient, NoMaskError, WorkerGoneError

if TYPE_CHECKING:
    from legato.sampling.row_sampler import SampledToken, SampleRow, SamplingBatch

FAILED = "grammar_failed"
BITS = 32  # of a word of a mask
MAX_DEATHS = 6  # of workers, while one mask is waited for


@dataclass(slots=True)
class _RowState:
    """What a row's worker was asked last: the mask of the token after `num_known` of its request."""

    num_known: int
    mask: "Future[bytes]"


class RowGrammars:
    """The grammars of running requests, by row of the token pool.

    Their state is the worker's; should it die, another one reads the tokens again out of the token pool.

    tokenizer   the model's tokenizer.json; None: its tokens are numbers alone
    eos_ids     each of them may end an answer that is whole
    vocab_size  tokens that have a logit: they may be fewer than the tokenizer has, or more
    """

    def __init__(
        self, tokenizer: Path | None = None, eos_ids: frozenset[int] = frozenset(), vocab_size: int = 0
    ) -> None:
        self._client = None if tokenizer is None else GrammarClient(tokenizer, eos_ids)
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        self._rows: dict[int, _RowState] = {}

    def prepare(self, grammar: str) -> "Future[None] | None":
        """Have a grammar built before its request gets a row; done when nobody would wait for it any more."""
        return None if self._client is None else self._client.prepare(grammar)

    def begin(self, row_starts: Iterable[tuple[int, RowStart]]) -> None:
        """Note who has got a row; their first masks are computed while their prompts are."""
        for row, start in row_starts:
            self._rows.pop(row, None)
            if start.params.grammar is not None:
                output_ids = start.token_ids[start.prompt_len :]
                mask = self._ask(row, start.params.grammar, output_ids)
                self._rows[row] = _RowState(len(start.token_ids), mask)

    def look_ahead(self, batch: "SamplingBatch", sampled: "Sequence[SampledToken | RowError]") -> None:
        """Have the masks of the step after this one computed, now that its tokens are known."""
        new_ids: dict[int, int] = {}
        for index in batch.constrained:
            row, token = batch.rows[index], sampled[index]
            if not isinstance(token, RowError) and token.token_id not in row.start.ending_ids:
                new_ids[row.row] = token.token_id
        if new_ids and self._client is not None:
            for row_number, mask in zip(new_ids, self._client.advance(list(new_ids.items())), strict=True):
                state = self._rows[row_number]
                state.num_known, state.mask = state.num_known + 1, mask

    def allowed(
        self, batch: "SamplingBatch", token_pool: NDArray[np.int32]
    ) -> tuple[AllowedTokens, dict[int, RowError]]:
        """What the rows of a step may become, and which of them can become nothing, and why."""
        if not batch.constrained:
            return EVERY_TOKEN, {}
        errors: dict[int, RowError] = {}
        masks: list[NDArray[np.uint32]] = []
        mask_rows = np.full(len(batch.rows), -1, np.int32)
        for index in batch.constrained:
            row = batch.rows[index]
            try:
                masks.append(self._narrow(self._mask(row, token_pool[row.row, : row.position]), row))
                mask_rows[index] = len(masks) - 1
            except NoMaskError as error:
                errors[index] = RowError(str(error), FAILED)
        return AllowedTokens(np.stack(masks) if masks else EVERY_TOKEN.masks, mask_rows), errors

    def _mask(self, row: "SampleRow", known: NDArray[np.int32]) -> NDArray[np.uint32]:
        """The grammar's own mask of the token after the known ones. Raises NoMaskError."""
        state, start = self._rows[row.row], row.start
        if state.num_known != len(known):
            raise NoMaskError("the answer has ended")  # when this step was planned already
        assert start.params.grammar is not None
        num_deaths = 0
        while True:
            try:
                return np.frombuffer(state.mask.result(), "<u4").astype(np.uint32)
            except WorkerGoneError as error:
                num_deaths += 1
                # one that was not alone may have died of a grammar that had just come
                if num_deaths == MAX_DEATHS or (num_deaths > 1 and error.was_alone):
                    raise NoMaskError(
                        f"the process that follows the grammar has died {num_deaths} times over it;"
                        " write it another way"
                    ) from error
            state.mask = self._ask(row.row, start.params.grammar, known[start.prompt_len :].tolist())

    def _ask(self, row: int, grammar: str, output_ids: Sequence[int]) -> "Future[bytes]":
        if self._client is not None:
            return self._client.begin(row, grammar, output_ids)
        no_mask: Future[bytes] = Future()
        no_mask.set_exception(NoMaskError("the grammar cannot be used: this model has no tokenizer"))
        return no_mask

    def _narrow(self, mask: NDArray[np.uint32], row: "SampleRow") -> NDArray[np.uint32]:
        """Leave in a mask what the request's other settings allow; NoMaskError when that is nothing."""
        params, output_len = row.start.params, row.position - row.start.prompt_len
        mask &= _bits(range(min(self._vocab_size, len(mask) * BITS)), len(mask))
        ends = _bits(self._eos_ids, len(mask))
        if params.ignore_eos and (mask & ~ends).any():
            mask &= ~ends  # the end comes where the grammar leaves nothing else
        if not mask.any():
            raise NoMaskError(f"after {output_len} tokens the grammar allows none that the model has")
        if output_len < params.min_tokens:
            mask &= ~_bits(row.start.ending_ids, len(mask))
            if not mask.any():
                raise NoMaskError(
                    f"after {output_len} tokens the grammar allows nothing but the end of the answer,"
                    f" and min_tokens is {params.min_tokens}"
                )
        return mask


@lru_cache(maxsize=64)
def _bits(token_ids: "frozenset[int] | range", num_words: int) -> NDArray[np.uint32]:
    """A mask of these tokens, as far as it has them. Not to be written to."""
    flags = np.zeros(num_words * BITS, np.uint8)
    flags[[token_id for token_id in token_ids if token_id < len(flags)]] = 1
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
