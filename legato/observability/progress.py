"""How far long work is: a bar on a terminal, a line for each part in a log."""

import sys
from types import TracebackType
from typing import TextIO

BAR_LEN = 24
ERASE_LINE = "\r\x1b[2K"


class Progress:
    """Written to standard error; on a terminal the bar is gone when the work is done.

    has_lines  write plain lines where there is no terminal
    """

    def __init__(self, title: str, *, has_lines: bool = True, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self.is_terminal = self._stream.isatty()
        self._has_lines = has_lines
        self._last = ""

    def show(self, share: float | None, note: str = "") -> None:
        """`share` of the work is done, 0 to 1, or None: nobody knows; `note` names the part at hand."""
        if self.is_terminal and share is not None:
            filled = round(BAR_LEN * share)
            line = f"{self._title} [{'#' * filled}{'.' * (BAR_LEN - filled)}] {share:4.0%} {note}".rstrip()
        else:
            line = f"{self._title}: {note}"
        if line == self._last:
            return
        self._last = line
        if self.is_terminal:
            self._stream.write(ERASE_LINE + line)
        elif self._has_lines:
            self._stream.write(line + "\n")
        self._stream.flush()

    def tell(self, line: str) -> None:
        """Write a line that stays, above the bar."""
        bar = self._last if self.is_terminal else ""
        self._stream.write(f"{ERASE_LINE}{line}\n{bar}" if bar else f"{line}\n")
        self._stream.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_terminal and self._last:
            self._stream.write(ERASE_LINE)
            self._stream.flush()
