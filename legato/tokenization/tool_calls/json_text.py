"""JSON that comes character by character: each is refused as soon as no JSON can begin so."""

import json
import re

WHITESPACE = frozenset(" \t\n\r")
_SCALAR_CHARS = frozenset("0123456789+-.eE" + "true" + "false" + "null")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_OPENED_BY = {"}": "{", "]": "["}


class MalformedError(ValueError):
    """A character that does not fit."""


class StringText:
    """One JSON string: everything after its first quotation mark."""

    def __init__(self) -> None:
        self._chars: list[str] = []
        self._hex_left = 0
        self._is_escaped = False

    @property
    def is_escaping(self) -> bool:
        """The next character belongs to an escape sequence."""
        return self._is_escaped or self._hex_left > 0

    def feed(self, char: str) -> bool:
        """Take in a character; True when it ends the string. Raises MalformedError."""
        if self._hex_left:
            if char not in "0123456789abcdefABCDEF":
                raise MalformedError
            self._hex_left -= 1
        elif self._is_escaped:
            if char not in '"\\/bfnrtu':
                raise MalformedError
            self._is_escaped, self._hex_left = False, 4 if char == "u" else 0
        elif char == '"':
            return True
        elif char < " ":
            raise MalformedError
        else:
            self._is_escaped = char == "\\"
        self._chars.append(char)
        return False

    def value(self) -> str:
        """What it says, once it has ended."""
        text: str = json.loads(f'"{"".join(self._chars)}"')
        return text


class ScalarText:
    """One number, true, false or null; it ends before the first character that is no part of it."""

    def __init__(self) -> None:
        self._chars: list[str] = []

    def feed(self, char: str) -> bool:
        """Take in a character; False when it stands behind the value. Raises MalformedError."""
        if char in _SCALAR_CHARS:
            self._chars.append(char)
            return True
        if not _SCALAR.fullmatch("".join(self._chars)):
            raise MalformedError
        return False


class ContainerText:
    """One JSON object or array, from its first bracket to its last; its depth costs memory alone."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._state = self._value
        self._string = StringText()
        self._scalar = ScalarText()

    @property
    def is_in_string(self) -> bool:
        """Characters that JSON strings hold as they are may be left out of what is fed."""
        return self._state in (self._in_string, self._in_key) and not self._string.is_escaping

    def feed(self, char: str) -> bool:
        """Take in a character; True when it ends the container. Raises MalformedError."""
        self._state(char)
        return not self._open

    def _value(self, char: str) -> None:
        if char in "{[":
            self._open.append(char)
            self._state = self._first_key if char == "{" else self._first_value
        elif char == '"':
            self._string, self._state = StringText(), self._in_string
        elif char not in WHITESPACE:
            self._scalar, self._state = ScalarText(), self._in_scalar
            if not self._scalar.feed(char):
                raise MalformedError

    def _first_value(self, char: str) -> None:
        (self._close if char == "]" else self._value)(char)

    def _first_key(self, char: str) -> None:
        (self._close if char == "}" else self._key)(char)

    def _key(self, char: str) -> None:
        if char == '"':
            self._string, self._state = StringText(), self._in_key
        elif char not in WHITESPACE:
            raise MalformedError

    def _in_key(self, char: str) -> None:
        if self._string.feed(char):
            self._state = self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._state = self._value
        elif char not in WHITESPACE:
            raise MalformedError

    def _in_string(self, char: str) -> None:
        if self._string.feed(char):
            self._state = self._after_value

    def _in_scalar(self, char: str) -> None:
        if not self._scalar.feed(char):
            self._state = self._after_value
            self._after_value(char)

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._state = self._key if self._open[-1] == "{" else self._value
        elif char in _OPENED_BY:
            self._close(char)
        elif char not in WHITESPACE:
            raise MalformedError

    def _close(self, char: str) -> None:
        if self._open.pop() != _OPENED_BY[char]:
            raise MalformedError
        self._state = self._after_value
