"""Answers of chat routes: text and tool calls, read from the text that the model writes."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields
from typing import Any

from legato.core.sampling_params import FinishReason
from legato.frontend.generator import TextDelta, TextStream
from legato.tokenization.tool_calls.reader import ToolCallDelta, ToolCallReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta(TextDelta):
    """A TextDelta whose text is what is said alone; the calls stand beside it."""

    tool_calls: tuple[ToolCallDelta, ...] = ()


class ChatStream:
    """Implements TextStream, of ChatDeltas.

    make_reader  makes a reader for each answer; None = all of the text is said
    is_said      False: the answers are calls alone, so text is a call that was cut, and nobody's to read
    """

    def __init__(
        self,
        stream: TextStream,
        make_reader: Callable[[], ToolCallReader] | None = None,
        *,
        is_said: bool = True,
    ) -> None:
        self.prompts, self.courses, self.request_ids = stream.prompts, stream.courses, stream.request_ids
        self.first_token_at = stream.first_token_at
        self._stream = stream
        self._make_reader = make_reader
        self._is_said = is_said
        self._readers: dict[int, ToolCallReader] = {}

    async def __aiter__(self) -> AsyncIterator[ChatDelta]:
        async for delta in self._stream:
            values = {field.name: getattr(delta, field.name) for field in fields(TextDelta)}
            yield ChatDelta(**values | self._read(delta))

    def abort(self, reason: FinishReason = FinishReason.ABORT) -> None:
        self._stream.abort(reason)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _read(self, delta: TextDelta) -> dict[str, Any]:
        """What differs from the TextDelta."""
        if self._make_reader is None:
            return {}
        reader = self._readers.get(delta.index)
        if reader is None:
            reader = self._readers[delta.index] = self._make_reader()
        pieces = [reader.push(delta.text)]
        changed: dict[str, Any] = {}
        if delta.finish_reason is not None:
            pieces.append(reader.finish())
            if delta.finish_reason is FinishReason.STOP and reader.has_calls:
                changed["finish_reason"] = FinishReason.TOOL_CALLS
        changed["text"] = "".join(piece.text for piece in pieces) if self._is_said else ""
        changed["tool_calls"] = tuple(call for piece in pieces for call in piece.tool_calls)
        return changed
