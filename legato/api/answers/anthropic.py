"""Anthropic's shapes of an answer: a message, and the events that build it."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

from legato.api.answers.blocks import Block, BlockAnswer, Json
from legato.api.errors import ErrorAnswer
from legato.api.sse import EventFormat
from legato.core.sampling_params import FinishReason
from legato.frontend.generator import Usage

STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}
ANTHROPIC_EVENTS = EventFormat(
    is_named=True, fault=ErrorAnswer.anthropic_body, ping=b'event: ping\ndata: {"type":"ping"}\n\n', end=b""
)


class MessageAnswer(BlockAnswer):
    """Answer of /v1/messages. Its first event waits for the first token, to tell what the cache gave."""

    def __init__(self, *, model: str) -> None:
        super().__init__()
        self._model = model
        self.id = f"msg_{uuid.uuid4().hex}"

    def body(self) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [_whole_block(block) for block in self.blocks],
            **self._stop(),
            "usage": _usage_json(self.usage),
        }

    def _started(self) -> Iterator[Json]:
        yield {"type": "message_start", "message": self.body()}

    def _opened(self, block: Block) -> Iterator[Json]:
        empty = _block_json(block, text="", arguments={})
        yield {"type": "content_block_start", "index": block.index, "content_block": empty}

    def _grown(self, block: Block, piece: str) -> Iterator[Json]:
        delta = (
            {"type": "input_json_delta", "partial_json": piece}
            if block.is_call
            else {"type": "text_delta", "text": piece}
        )
        yield {"type": "content_block_delta", "index": block.index, "delta": delta}

    def _closed(self, block: Block) -> Iterator[Json]:
        yield {"type": "content_block_stop", "index": block.index}

    def _ended(self) -> Iterator[Json]:
        yield {"type": "message_delta", "delta": self._stop(), "usage": _usage_json(self.usage)}
        yield {"type": "message_stop"}

    def _stop(self) -> Json:
        if self.finish_reason is None:
            return {"stop_reason": None, "stop_sequence": None}
        if self.finish_reason is FinishReason.STOP and isinstance(self.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": self.stop_reason}
        reason = STOP_REASONS.get(self.finish_reason, self.finish_reason.value)
        return {"stop_reason": reason, "stop_sequence": None}


def _whole_block(block: Block) -> Json:
    return _block_json(block, text=block.text, arguments=_arguments(block.text))


def _block_json(block: Block, *, text: str, arguments: Json) -> Json:
    if block.is_call:
        return {"type": "tool_use", "id": block.call_id, "name": block.tool, "input": arguments}
    return {"type": "text", "text": text}


def _arguments(text: str) -> Json:
    """The object that the text of a call holds; empty when max_tokens has cut it."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage_json(usage: Usage) -> Json:
    """input_tokens are those that the cache did not give; nothing is charged for writing to it."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
