"""Calls as Mistral's models write them: [TOOL_CALLS] [{"name": …, "arguments": …}], or [TOOL_CALLS]f{…}."""

import re
import secrets
from dataclasses import replace

from legato.tokenization.tool_calls.call_reader import CallReader, Steps, Text
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.json_text import MalformedError

OPEN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_WORD_CHAR = re.compile(r"[a-zA-Z0-9_-]")


class MistralReader(CallReader):
    """A list of calls behind the marker, or, newer, one call by its name, which more markers may follow."""

    def _calls(self) -> Steps:
        yield from self._until(OPEN)
        char = yield from self._visible()
        if char != "[":
            self._reread(self._last)
            yield from self._named()
            return
        yield from self._object()
        while (yield from self._another(",")):
            yield from self._object()
        yield from self._follows("]")

    def _named(self) -> Steps:
        name = yield from self._word()
        tag = yield from self._tag()
        if tag == CALL_ID:
            yield from self._word()
            tag = yield from self._tag()
        if tag not in ("", ARGS):
            raise MalformedError
        yield from self._call(name)

    def _tag(self) -> Text:
        """A marker, or "" when none stands here."""
        if (yield from self._next()) != "[":
            self._reread(self._last)
            return ""
        word = yield from self._word()
        yield from self._expect("]")
        return f"[{word}]"

    def _word(self) -> Text:
        chars = []
        while _WORD_CHAR.match(char := (yield from self._next())):
            chars.append(char)
        self._reread(self._last)
        return "".join(chars)


def _make_id() -> str:
    """Nine letters and digits: the templates refuse others."""
    return secrets.token_hex(5)[:9]


MISTRAL = ToolFormat(
    kind="mistral",
    make_reader=MistralReader,
    marker=OPEN,
    markers=(OPEN, CALL_ID, ARGS),
    begin=f"{OPEN} [",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    between=", ",
    end="]",
    make_id=_make_id,
)
NEWER_MISTRAL = replace(
    MISTRAL, begin="", before_name=OPEN, before_arguments=ARGS, after_arguments="", between="", end=""
)
