"""Shapes of OpenAI's Responses API: a response, its output items, and the events that build them."""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from legato.api.answers.blocks import Block, BlockAnswer, Json
from legato.api.answers.chat import ChatDelta
from legato.api.answers.logprobs import TokenNames, chat_logprobs
from legato.api.errors import ErrorAnswer
from legato.api.sse import EventFormat
from legato.core.sampling_params import FinishReason
from legato.frontend.generator import Usage, Vocabulary

INCOMPLETE_REASONS = {FinishReason.LENGTH: "max_output_tokens"}


class ResponseAnswer(BlockAnswer):
    """Answer of /v1/responses.

    settings      the fields of the response that repeat the request
    num_logprobs  how many of the most probable tokens stand beside each token of a text; None = no logprobs
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        vocabulary: Vocabulary | None = None,
        num_logprobs: int | None = None,
    ) -> None:
        super().__init__()
        self._names = TokenNames(vocabulary)
        self._num_logprobs = num_logprobs
        self._waiting: list[Json] = []  # logprobs of tokens whose text has not come yet
        self._logprobs: list[list[Json]] = []  # of each block
        self._settings = dict(settings)
        self.id = f"resp_{uuid.uuid4().hex}"
        self._created_at = int(time.time())
        self._num_events = 0
        self._item_ids: list[str] = []
        self._error: Json | None = None

    @property
    def format(self) -> EventFormat:
        return EventFormat(is_named=True, fault=self._failed, end=b"")

    def body(self) -> Json:
        status = self._status()
        reason = self.finish_reason and INCOMPLETE_REASONS.get(self.finish_reason, self.finish_reason.value)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "output": [self._item(block) for block in self.blocks],
            "previous_response_id": None,
            "store": False,
            "usage": None if self.finish_reason is None else _usage_json(self.usage),
            **self._settings,
        }

    def _accepted(self) -> Iterator[Json]:
        yield self._event("response.created", response=self.body())
        yield self._event("response.in_progress", response=self.body())

    def _grow(self, delta: ChatDelta) -> Iterator[Json]:
        if self._num_logprobs is not None:
            lists = chat_logprobs(delta.token_ids, delta.logprobs, self._names, self._num_logprobs)
            self._waiting += lists["content"]
        yield from super()._grow(delta)

    def _opened(self, block: Block) -> Iterator[Json]:
        self._logprobs.append([])
        self._item_ids.append(f"{'fc' if block.is_call else 'msg'}_{uuid.uuid4().hex}")
        yield self._event("response.output_item.added", output_index=block.index, item=self._item(block))
        if not block.is_call:
            yield self._event("response.content_part.added", **self._place(block), part=_text_part("", []))

    def _grown(self, block: Block, piece: str) -> Iterator[Json]:
        logprobs = self._take_logprobs(block)
        if block.is_call:
            yield self._event("response.function_call_arguments.delta", **self._place(block), delta=piece)
        else:
            yield self._event(
                "response.output_text.delta", **self._place(block), delta=piece, logprobs=logprobs
            )

    def _closed(self, block: Block) -> Iterator[Json]:
        text, place = block.text, self._place(block)
        if block.is_call:
            yield self._event(
                "response.function_call_arguments.done", **place, name=block.tool, arguments=text
            )
        else:
            self._take_logprobs(block)  # of what ended the text and is no part of it
            logprobs = self._logprobs[block.index]
            yield self._event("response.output_text.done", **place, text=text, logprobs=logprobs)
            yield self._event("response.content_part.done", **place, part=_text_part(text, logprobs))
        yield self._event("response.output_item.done", output_index=block.index, item=self._item(block))

    def _ended(self) -> Iterator[Json]:
        yield self._event(f"response.{self._status()}", response=self.body())

    def _failed(self, error: ErrorAnswer) -> Json:
        self._error = {"code": "server_error", "message": error.message}
        self._open = None  # nothing follows
        return self._event("response.failed", response=self.body())

    def _status(self) -> str:
        if self._error is not None:
            return "failed"
        if self.finish_reason is None:
            return "in_progress"
        is_complete = self.finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)
        return "completed" if is_complete else "incomplete"

    def _item(self, block: Block) -> Json:
        """In progress while it is open; the last one is cut where the answer is."""
        is_cut = self._status() in ("incomplete", "failed") and block is self.blocks[-1]
        status = "in_progress" if block is self._open else "incomplete" if is_cut else "completed"
        item: Json = {"id": self._item_ids[block.index], "status": status}
        if block.is_call:
            arguments = "" if block is self._open else block.text
            return item | {
                "type": "function_call",
                "call_id": block.call_id,
                "name": block.tool,
                "arguments": arguments,
            }
        content = [] if block is self._open else [_text_part(block.text, self._logprobs[block.index])]
        return item | {"type": "message", "role": "assistant", "content": content}

    def _take_logprobs(self, block: Block) -> list[Json]:
        """Those that waited for the block's next piece; those of a call are told nowhere."""
        taken, self._waiting = self._waiting, []
        if not block.is_call:
            self._logprobs[block.index] += taken
        return taken

    def _place(self, block: Block) -> Json:
        place = {"item_id": self._item_ids[block.index], "output_index": block.index}
        return place if block.is_call else place | {"content_index": 0}

    def _event(self, type_: str, **fields: Any) -> Json:
        number = self._num_events
        self._num_events += 1
        return {"type": type_, "sequence_number": number, **fields}


def _text_part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage_json(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
