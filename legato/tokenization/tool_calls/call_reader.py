"""Reads calls of tools out of an answer's text as it comes; each format says what its calls look like."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from itertools import takewhile

from legato.tokenization.stop_matcher import StopMatcher
from legato.tokenization.tool_calls.json_text import (
    WHITESPACE,
    ContainerText,
    MalformedError,
    ScalarText,
    StringText,
)
from legato.tokenization.tool_calls.reader import ChatPiece, ToolCallDelta

ARGUMENT_KEYS = ("arguments", "parameters")  # models mix them up

Steps = Generator[None, str, None]  # takes pieces of text
Text = Generator[None, str, str]  # takes them and gives what it made of them
Answer = Generator[None, str, bool]  # takes them and says whether they are what was looked for

_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+')  # characters of a JSON string that stand for themselves


class CallReader(ABC):
    """Implements ToolCallReader for one format, which a subclass writes down as a generator, _calls().

    What it does with a character depends on those before it alone, so how the text was cut cannot matter,
    and time is linear in the text. A call begins with the bracket of its arguments, when its name is known
    to be one of `names`. What breaks off before is text, to the last character; what breaks off behind stays
    a call that is cut, and text from there on. Whitespace beside a call is neither; where text stands on both
    sides, it parts the two.
    """

    def __init__(self, names: Collection[str], make_id: Callable[[], str]) -> None:
        self._names = frozenset(names)
        self._make_id = make_id
        self._text: list[str] = []  # said since the last _take()
        self._deltas: list[ToolCallDelta] = []  # called since then
        self._arguments: list[str] = []  # more of the last call
        self._last = ""  # the character read last
        self._unread = ""  # the piece that is being read
        self._position = 0  # in it, of what comes next
        self._held: list[str] = []  # read, and text should no call come of it
        self._holds = True
        self._num_calls = 0
        self._is_open = False
        self._is_cut = False
        self._has_said = False
        self._is_beside_call = False
        self._gap = ""  # whitespace between what is said before a call and behind it
        self._steps = self._answer()
        next(self._steps)

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0 and not (self._is_open or self._is_cut)

    def push(self, text: str) -> ChatPiece:
        self._steps.send(text)
        return self._take()

    def finish(self) -> ChatPiece:
        self._say_held()
        return self._take()

    @abstractmethod
    def _calls(self) -> Steps:
        """Say text up to the next calls and read these; ends in front of what is text again."""

    def _answer(self) -> Steps:
        while True:
            self._holds = True
            try:
                yield from self._calls()
            except MalformedError:
                self._give_up()

    def _give_up(self) -> None:
        """No call can come of what was read: it is text, and its last character may begin another call."""
        self._reread(self._last)
        self._say_held(num_kept=sum(1 for _ in takewhile(str.isspace, reversed(self._held))))
        self._is_cut |= self._is_open
        self._is_open = False

    # The pieces that formats are written in.

    def _until(self, marker: str) -> Steps:
        """Say what stands before a marker."""
        matcher = StopMatcher([marker])
        first = re.escape(marker[0])
        words = re.compile(rf"[^\s{first}](?:[^{first}]*[^\s{first}])?")
        while True:
            before = matcher.pending_len
            if before == 0 and self._run(words):
                self._say_held()
            char = yield from self._next()
            if matcher.feed(char) is not None:
                return
            pending_len = matcher.pending_len
            if pending_len == before + 1 or (pending_len == before == 0 and char.isspace()):
                continue  # whitespace, then what may be the marker: all of it stays held
            self._say_held(num_kept=pending_len or char.isspace())

    def _follows(self, marker: str) -> Answer:
        """Whether `marker` stands behind a call, with whitespace before it or not; else it is left unread."""
        read = [(yield from self._next())]
        while read[-1] in WHITESPACE:
            read.append((yield from self._next()))
        start = len(read) - 1
        while marker.startswith(seen := "".join(read[start:])):
            if seen == marker:
                return True
            read.append((yield from self._next()))
        self._reread("".join(read))
        return False

    def _another(self, separator: str) -> Answer:
        """Whether another call follows behind one and a separator."""
        if not (yield from self._follows(separator)):
            return False
        self._held, self._holds = list(separator), True
        return True

    def _object(self) -> Steps:
        """One call, {"name": …, "arguments": {…}} in any order; further members are passed over."""
        yield from self._expect("{")
        name: str | None = None
        early: list[str] = []  # arguments that come before the name
        is_called = False
        while True:
            key = yield from self._string()
            yield from self._expect(":")
            if key == "name" and name is None:
                name = yield from self._string()
            elif key in ARGUMENT_KEYS and name is None and not early:
                yield from self._early_arguments(early.append)
            elif key in ARGUMENT_KEYS and name is not None and not (early or is_called):
                yield from self._call(name)
                is_called = self._holds = True
            else:
                yield from self._value()
            char = yield from self._visible()
            if char != ",":
                break
        if char != "}":
            if not is_called:
                raise MalformedError
            self._reread(self._last)  # a closing bracket that is forgotten harms nobody
        if not is_called:
            self._begin(name)
            self._argue("".join(early) or "{}")
            self._end()
        self._held.clear()
        self._holds = False

    def _call(self, name: str) -> Steps:
        """The arguments of a call."""
        char = yield from self._expect("{")
        self._begin(name)
        yield from self._container(char, self._argue)
        self._end()

    def _early_arguments(self, sink: Callable[[str], None]) -> Steps:
        char = yield from self._expect("{")
        yield from self._container(char, sink)

    def _value(self) -> Steps:
        """Any JSON value, passed over."""
        char = yield from self._visible()
        if char in "{[":
            yield from self._container(char, lambda _: None)
        elif char == '"':
            self._reread(self._last)
            yield from self._string()
        else:
            scalar = ScalarText()
            while scalar.feed(char):
                char = yield from self._next()
            self._reread(self._last)

    def _container(self, char: str, sink: Callable[[str], None]) -> Steps:
        """A JSON object or array from its first bracket, `char`, on; what fits goes to `sink`."""
        container = ContainerText()
        while not container.feed(char):
            sink(char)
            if container.is_in_string and (run := self._run(_IN_STRING)):
                sink(run)
            char = yield from self._next()
        sink(char)

    def _string(self) -> Text:
        """What a JSON string says."""
        yield from self._expect('"')
        string = StringText()
        while not string.feed((yield from self._next())):
            pass
        return string.value()

    def _expect(self, expected: str) -> Text:
        """This character, with whitespace before it or not."""
        char = yield from self._visible()
        if char != expected:
            raise MalformedError
        return char

    def _visible(self) -> Text:
        """The next character that is no whitespace."""
        while (char := (yield from self._next())) in WHITESPACE:
            pass
        return char

    def _next(self) -> Text:
        """One character."""
        while self._position == len(self._unread):
            self._unread, self._position = (yield), 0
        self._last = self._unread[self._position]
        self._position += 1
        if self._holds:
            self._held.append(self._last)
        return self._last

    def _run(self, pattern: re.Pattern[str]) -> str:
        """Characters that are here and match; read one by one, they must come to the same."""
        if (found := pattern.match(self._unread, self._position)) is None:
            return ""
        self._position = found.end()
        if self._holds:
            self._held.append(found[0])
        return found[0]

    def _reread(self, text: str) -> None:
        """Leave the last characters unread, which are these."""
        if self._holds:
            del self._held[len(self._held) - len(text) :]
        if len(text) > self._position:  # some of them came in a piece before
            self._unread, self._position = text + self._unread[self._position :], len(text)
        self._position -= len(text)

    # What comes out.

    def _say_held(self, num_kept: int = 0) -> None:
        """Say what is held, but what was held last."""
        num_said = len(self._held) - num_kept
        text = "".join(self._held[:num_said])
        del self._held[:num_said]
        if self._is_beside_call:
            words = text.lstrip()
            gap = self._gap or text[: len(text) - len(words)]
            text = words and (gap + words if self._has_said else words)
            self._is_beside_call = not text
        self._has_said |= bool(text)
        self._text.append(text)

    def _begin(self, name: str | None) -> None:
        if name not in self._names:
            raise MalformedError
        if not self._is_beside_call:
            self._gap = "".join(takewhile(str.isspace, self._held))
        self._held.clear()
        self._holds, self._is_open = False, True
        self._join_arguments()
        self._deltas.append(ToolCallDelta(self._num_calls, id=self._make_id(), name=name))
        self._num_calls += 1

    def _argue(self, text: str) -> None:
        self._arguments.append(text)

    def _join_arguments(self) -> None:
        """Put the pieces into one delta, that of the call's beginning if it is here."""
        if not self._arguments:
            return
        begun = self._deltas.pop() if self._deltas else ToolCallDelta(self._num_calls - 1)
        self._deltas.append(begun._replace(arguments=begun.arguments + "".join(self._arguments)))
        self._arguments.clear()

    def _end(self) -> None:
        self._is_open, self._is_beside_call = False, True

    def _take(self) -> ChatPiece:
        """What came out since the last time, in as few pieces as hold it."""
        self._join_arguments()
        piece = ChatPiece("".join(self._text), tuple(self._deltas))
        self._text.clear()
        self._deltas.clear()
        return piece
