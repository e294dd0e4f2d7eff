"""One answer as blocks in the order of the text: for APIs that list what is said and what is called."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from legato.api.answers.chat import ChatDelta, ChatStream
from legato.core.sampling_params import FinishReason
from legato.frontend.generator import Usage
from legato.tokenization.tool_calls.reader import ToolCallDelta

Json = dict[str, Any]


@dataclass(slots=True)
class Block:
    """A run of text, or one call of a tool with the text of its arguments.

    index    of the block in its answer
    call_id  names a call to its client; text has none
    """

    index: int
    call_id: str | None = None
    tool: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        return self.call_id is not None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class BlockAnswer(ABC):
    """Turns the deltas of one answer into the events of its blocks: each is opened, grown and closed in turn.

    The whole answer is what the same events leave behind, so it cannot differ from the stream.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.usage = Usage(prompt_tokens=0, completion_tokens=0)
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._open: Block | None = None

    async def events(self, stream: ChatStream) -> AsyncGenerator[Json, None]:
        for event in self._accepted():
            yield event
        is_started = False
        async for delta in stream:
            self.usage = delta.usage
            if not is_started:
                is_started = True
                for event in self._started():
                    yield event
            for event in self._grow(delta):
                yield event
            if delta.finish_reason is not None:
                self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
                for event in (*self._close(), *self._ended()):
                    yield event

    async def whole(self, stream: ChatStream) -> Json:
        async for _ in self.events(stream):
            pass
        return self.body()

    @abstractmethod
    def body(self) -> Json:
        """The answer as far as it has come."""

    def _accepted(self) -> Iterable[Json]:
        """Before the first token exists."""
        return ()

    def _started(self) -> Iterable[Json]:
        """With the first token: the usage of the prompt is known."""
        return ()

    @abstractmethod
    def _opened(self, block: Block) -> Iterable[Json]: ...

    @abstractmethod
    def _grown(self, block: Block, piece: str) -> Iterable[Json]: ...

    @abstractmethod
    def _closed(self, block: Block) -> Iterable[Json]: ...

    @abstractmethod
    def _ended(self) -> Iterable[Json]: ...

    def _grow(self, delta: ChatDelta) -> Iterator[Json]:
        if delta.text:
            if self._open is None or self._open.is_call:
                yield from self._begin(None)
            yield from self._add(delta.text)
        for call in delta.tool_calls:
            if call.id is not None:
                yield from self._begin(call)
            if call.arguments:
                yield from self._add(call.arguments)

    def _begin(self, call: ToolCallDelta | None) -> Iterator[Json]:
        yield from self._close()
        block = Block(len(self.blocks))
        if call is not None:
            block.call_id, block.tool = call.id, call.name or ""
        self.blocks.append(block)
        self._open = block
        yield from self._opened(block)

    def _add(self, piece: str) -> Iterator[Json]:
        assert self._open is not None
        self._open.pieces.append(piece)
        yield from self._grown(self._open, piece)

    def _close(self) -> Iterator[Json]:
        if self._open is not None:
            block, self._open = self._open, None
            yield from self._closed(block)
