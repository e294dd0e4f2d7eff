"""One request's answer as it grows: tokens in, text out."""

from collections.abc import Collection, Sequence

from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.timing import Timing
from legato.frontend.generator import TextDelta, Usage
from legato.ipc.messages import TokenOutput
from legato.tokenization.detokenizer import Detokenizer
from legato.tokenization.tokenizer import Tokenizer


class Answer:
    """Turns the engine's tokens into deltas, and sees stop texts, which the engine knows nothing of.

    Without a tokenizer the deltas carry ids alone. shown_ids are special tokens that are not skipped.
    """

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        shown_ids: Collection[int] = (),
    ) -> None:
        self.is_finished = False
        self._index = index
        self._prompt_len = len(prompt)
        self._params = params
        self._num_tokens = 0
        self._cached_len = 0
        self._timing = Timing()
        self._text = None if tokenizer is None else _detokenizer(tokenizer, params, prompt[-1], shown_ids)

    def push(self, output: TokenOutput) -> TextDelta:
        """Take in what a step gave; with a finish_reason the answer is over."""
        self._cached_len, self._timing = output.cached_len, output.timing
        finish_reason = output.finish_reason
        stop_reason: str | int | None = self._stop_token(output)
        text, kept = "", []
        for place, token_id in enumerate(output.token_ids, start=1):
            self._num_tokens += 1
            kept.append(token_id)
            is_ending = finish_reason is FinishReason.STOP and place == len(output.token_ids)
            if self._text is None or (is_ending and not self._params.include_stop_str_in_output):
                continue
            text += self._text.push(token_id, may_stop=self._num_tokens >= self._params.min_tokens)
            if self._text.stop_reason is not None:
                break
        if self._text is not None:
            text += "" if finish_reason is None else self._text.finish()
            if self._text.stop_reason is not None:  # wins over a length that is reached in the same step
                finish_reason, stop_reason = FinishReason.STOP, self._text.stop_reason
        self.is_finished = finish_reason is not None
        return TextDelta(
            index=self._index,
            text=text,
            token_ids=tuple(kept),
            usage=Usage(self._prompt_len, self._num_tokens, output.cached_len),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            logprobs=tuple(output.logprobs[: len(kept)]),
            prompt_logprobs=tuple(output.prompt_logprobs),
            timing=output.timing,
        )

    def end(self, reason: FinishReason) -> TextDelta:
        """The last delta of an answer that is ended from outside: what was held back, and no more tokens."""
        return self.push(
            TokenOutput(
                request_id="",
                index=self._num_tokens,
                token_ids=[],
                finish_reason=reason,
                cached_len=self._cached_len,
                timing=self._timing,
            )
        )

    def _stop_token(self, output: TokenOutput) -> int | None:
        if output.finish_reason is FinishReason.STOP and output.token_ids[-1] in self._params.stop_token_ids:
            return output.token_ids[-1]
        return None


def _detokenizer(
    tokenizer: Tokenizer, params: SamplingParams, last_of_prompt: int, shown_ids: Collection[int]
) -> Detokenizer:
    return Detokenizer(
        tokenizer,
        stop=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        before=last_of_prompt,
        shown_ids=shown_ids,
    )
