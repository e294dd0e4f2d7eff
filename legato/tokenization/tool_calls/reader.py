"""What reading calls out of an answer's text gives, piece by piece."""

from typing import NamedTuple, Protocol


class ToolCallDelta(NamedTuple):
    """More of one tool call.

    position   of the call among the calls of its answer
    arguments  the next piece of their JSON text
    id, name   in the first delta of a call
    """

    position: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


class ChatPiece(NamedTuple):
    """What a reader made of some text."""

    text: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class ToolCallReader(Protocol):
    """Parts one answer's text into what is said and what is called; keeps back what could still be either.

    has_calls  at least one call is complete, and none is cut
    """

    @property
    def has_calls(self) -> bool: ...

    def push(self, text: str) -> ChatPiece: ...

    def finish(self) -> ChatPiece:
        """What was kept back: nothing follows."""
        ...
