"""Logprobs in the shapes of the OpenAI routes and of vLLM."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from legato.core.plan import TokenLogprobs
from legato.frontend.generator import Vocabulary

Json = dict[str, Any]

LEAST_LOGPROB = -9999.0  # JSON has no infinity; vLLM's number


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How logprobs write tokens.

    vocabulary   None where the model has no tokenizer: then tokens are written by their ids
    as_ids       write them so in any case: token_id:17
    byte_prefix  before the escaped bytes of a token that is no whole text, e.g. \\xe2\\x80
    """

    vocabulary: Vocabulary | None
    as_ids: bool = False
    byte_prefix: str = ""

    def name(self, token_id: int) -> str:
        if self.vocabulary is None or self.as_ids:
            return f"token_id:{token_id}"
        data = self.vocabulary.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return self.byte_prefix + "".join(f"\\x{byte:02x}" for byte in data)

    def bytes(self, token_id: int) -> list[int] | None:
        return None if self.vocabulary is None else list(self.vocabulary.token_bytes(token_id))


def chat_logprobs(
    token_ids: Iterable[int], logprobs: Iterable[TokenLogprobs], names: TokenNames, num_top: int
) -> Json:
    """An entry for each token, with the `num_top` most probable ones at its place."""

    def entry(token_id: int, logprob: float) -> Json:
        return {
            "token": names.name(token_id),
            "logprob": _finite(logprob),
            "bytes": names.bytes(token_id),
        }

    content = [
        entry(token_id, each.logprob) | {"top_logprobs": [entry(*top) for top in _top(each, num_top)]}
        for token_id, each in zip(token_ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The lists of one choice of /v1/completions; they may be written in parts, one for each chunk.

    hidden_ids  of the tokens that an answer's text leaves out
    """

    def __init__(self, names: TokenNames, num_top: int, hidden_ids: frozenset[int]) -> None:
        self._names = names
        self._num_top = num_top
        self._places = _Places(names.vocabulary, hidden_ids)

    def prompt(self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Json:
        """The lists for the prompt before the answer: nothing precedes its first token, so that has none."""
        places = [self._places.in_text(token_id, text) for token_id in token_ids]
        self._places.go_to(len(text))
        return self._lists(token_ids, [None, *logprobs], places)

    def answer(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Json:
        """The lists for the next tokens of the answer."""
        places = [self._places.next(token_id) for token_id in token_ids]
        return self._lists(token_ids, logprobs, places)

    def _lists(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], places: list[int]
    ) -> Json:
        return {
            "tokens": [self._names.name(token_id) for token_id in token_ids],
            "token_logprobs": [None if each is None else _finite(each.logprob) for each in logprobs],
            "top_logprobs": [
                None if each is None else self._top_of(token_id, each)
                for token_id, each in zip(token_ids, logprobs, strict=True)
            ],
            "text_offset": places,
        }

    def _top_of(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """The most probable tokens and the one at this place; of two with one name the likelier counts."""
        tops: dict[str, float] = {}
        for top_id, logprob in [*_top(logprobs, self._num_top), (token_id, logprobs.logprob)]:
            tops.setdefault(self._names.name(top_id), _finite(logprob))
        return tops


class _Places:
    """Where in a choice's text each token begins, in characters; half a character begins where it does."""

    def __init__(self, vocabulary: Vocabulary | None, hidden_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._hidden_ids = hidden_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._place = 0

    def next(self, token_id: int) -> int:
        """The place of the next token of an answer, which shows all but the hidden ids."""
        place = self._place
        if token_id not in self._hidden_ids:
            self._place += len(self._piece(token_id))
        return place

    def in_text(self, token_id: int, text: str) -> int:
        """The place of the next token of a prompt that is given as `text`.

        Its tokenizer may have added special tokens and a first space.
        """
        place, piece = self._place, self._piece(token_id)
        if not text.startswith(piece, place):
            is_special = self._vocabulary is not None and token_id in self._vocabulary.special_ids
            piece = "" if is_special else piece[1:] if text.startswith(piece[1:], place) else piece
        self._place = min(place + len(piece), len(text))
        return place

    def go_to(self, place: int) -> None:
        self._place = place
        self._utf8.reset()

    def _piece(self, token_id: int) -> str:
        """The characters that this token completes."""
        return "" if self._vocabulary is None else self._utf8.decode(self._vocabulary.token_bytes(token_id))


def prompt_logprobs_json(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], names: TokenNames, num_top: int
) -> list[Json | None]:
    """vLLM's list: at each place id -> what is known of it, the prompt's own first; nothing at the first one.

    rank  1 for the most probable token; null for a token of the prompt that is not among the most probable
    """

    def at(token_id: int, each: TokenLogprobs) -> Json:
        top = _top(each, num_top)
        ranks = {top_id: rank for rank, (top_id, _) in enumerate(_top(each, len(each.top_ids)), start=1)}
        known = dict([(token_id, each.logprob), *top])
        return {
            str(known_id): {
                "logprob": _finite(logprob),
                "rank": ranks.get(known_id),
                "decoded_token": names.name(known_id),
            }
            for known_id, logprob in known.items()
        }

    return [None, *(at(*place) for place in zip(token_ids[1:], logprobs, strict=True))]


def _top(logprobs: TokenLogprobs, num_top: int) -> list[tuple[int, float]]:
    return list(zip(logprobs.top_ids[:num_top], logprobs.top_logprobs[:num_top], strict=True))


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
