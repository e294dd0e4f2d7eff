"""Token ids to text as they come: never half a character, never a piece of a stop text."""

import codecs
from collections.abc import Collection, Sequence, Set
from typing import Protocol

from legato.tokenization.stop_matcher import StopMatcher
from legato.tokenization.tokenizer import Tokenizer

MAX_HELD_TOKENS = 8  # a character has at most four bytes: whatever is still incomplete by then is invalid
REPLACEMENT = "\ufffd"


class Detokenizer:
    """One answer's text.

    The joined deltas are the text of all ids together, cut at the stop text that ends first (the
    longest of those that end at the same character); include_stop keeps that text in the answer.
    before is the last id of the prompt: what follows it does not begin a text, so keeps its first space.
    shown_ids are special tokens that are not skipped where others are.
    Cost per token does not grow with the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        before: int | None = None,
        shown_ids: Collection[int] = (),
    ) -> None:
        skipped = tokenizer.special_ids.difference(shown_ids) if skip_special_tokens else frozenset[int]()
        self.stop_reason: str | None = None
        self._decoder: _Decoder = (
            _ByteLevelDecoder(tokenizer, skipped)
            if tokenizer.is_byte_level
            else _WindowDecoder(tokenizer, skipped, before)
        )
        self._matcher = StopMatcher(stop)
        self._include_stop = include_stop
        self._held = ""  # complete characters that could still become a stop text
        self._may_stop = True

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """The text that is safe to send after one more token; "" once a stop text is complete.

        may_stop  False while the answer must go on (min_tokens): a stop text that ends here is plain text
        """
        if self.stop_reason is not None:
            return ""
        self._may_stop = may_stop
        return self._release(self._decoder.push(token_id))

    def finish(self) -> str:
        """What was held back: nothing follows. Bytes of an incomplete character become U+FFFD."""
        if self.stop_reason is not None:
            return ""
        text = self._release(self._decoder.finish()) + self._held
        self._held = ""
        return text

    def _release(self, new_text: str) -> str:
        text = self._held + new_text
        match = self._matcher.feed(new_text, self._may_stop)
        if match is not None:
            self.stop_reason, self._held = match.stop, ""
            end = len(text) - len(new_text) + match.end
            return text[: end if self._include_stop else end - len(match.stop)]
        safe_len = len(text) - self._matcher.pending_len
        self._held = text[safe_len:]
        return text[:safe_len]


class _Decoder(Protocol):
    """Gives whole characters, each exactly once."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class _ByteLevelDecoder:
    """Tokens are bytes of UTF-8."""

    def __init__(self, tokenizer: Tokenizer, skipped: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Tokens whose text depends on their neighbours: a window of the last tokens is decoded twice.

    Exact as long as more tokens only lengthen the decoded text. Byte fallback breaks that when an
    invalid byte follows valid ones; what has been given stays given.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: Set[int], before: int | None) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._given: list[int] = []  # the last tokens whose text was given
        self._new: list[int] = []
        if before is not None and before not in tokenizer.special_ids:
            self._given = [] if tokenizer.decode([before], False).endswith(REPLACEMENT) else [before]

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._new.append(token_id)
        text = self._text()
        if not text or (text.endswith(REPLACEMENT) and len(self._new) < MAX_HELD_TOKENS):
            return ""
        self._given, self._new = self._new, []
        return text

    def finish(self) -> str:
        text = self._text() if self._new else ""
        self._given, self._new = self._given + self._new, []
        return text

    def _text(self) -> str:
        before = self._tokenizer.decode(self._given, False)
        return self._tokenizer.decode(self._given + self._new, False)[len(before) :]
