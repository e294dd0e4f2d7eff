"""OpenAI's shapes of an answer: chunks of a stream, and the whole, from the same deltas."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, ClassVar

from legato.api.answers.plain import Answer
from legato.frontend.generator import TextDelta, TextStream, Usage

Json = dict[str, Any]


class OpenAIAnswer(ABC):
    """One call's answer; its id, time and names stand in every part of it.

    include_usage      a last chunk with the usage of the whole call
    continuous_usage   the usage so far in every chunk
    Elsewhere the key `usage` is left out, not null: some clients fail on null.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(
        self, *, model: str, fingerprint: str, include_usage: bool = False, continuous_usage: bool = False
    ) -> None:
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self._head = {
            "id": self.id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def whole(self, answers: Sequence[Answer]) -> Json:
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        usage = usage_json(answer.usage for answer in answers)
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": usage}

    async def chunks(self, stream: TextStream) -> AsyncGenerator[Json, None]:
        """A chunk for each delta that has text or ends an answer."""
        usages: dict[int, Usage] = {}
        started: set[int] = set()
        async for delta in stream:
            usages[delta.index] = delta.usage
            if not delta.text and delta.finish_reason is None:
                continue
            chunk = self._chunk([self._chunk_choice(delta, is_first=delta.index not in started)])
            started.add(delta.index)
            if self._continuous_usage:
                chunk["usage"] = usage_json(usages.values())
            yield chunk
        if self._include_usage:
            yield self._chunk([]) | {"usage": usage_json(usages.values())}

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._head, "object": self.chunk_object, "choices": choices}

    @abstractmethod
    def _whole_choice(self, index: int, answer: Answer) -> Json: ...

    @abstractmethod
    def _chunk_choice(self, delta: TextDelta, *, is_first: bool) -> Json: ...


class ChatAnswer(OpenAIAnswer):
    """Answer of /v1/chat/completions."""

    id_prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _whole_choice(self, index: int, answer: Answer) -> Json:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}

    def _chunk_choice(self, delta: TextDelta, *, is_first: bool) -> Json:
        """The role comes with the first text: alone, it would pass for a first token."""
        content: Json = {"content": delta.text} if delta.text or is_first else {}
        role = {"role": "assistant"} if is_first else {}
        return {
            "index": delta.index,
            "delta": role | content,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }


class CompletionAnswer(OpenAIAnswer):
    """Answer of /v1/completions, with vLLM's `stop_reason`: the stop text or id that matched."""

    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def _whole_choice(self, index: int, answer: Answer) -> Json:
        return _text_choice(index, answer)

    def _chunk_choice(self, delta: TextDelta, *, is_first: bool) -> Json:
        return _text_choice(delta.index, delta)


def _text_choice(index: int, part: Answer | TextDelta) -> Json:
    return {
        "index": index,
        "text": part.text,
        "logprobs": None,
        "finish_reason": part.finish_reason,
        "stop_reason": part.stop_reason,
    }


def usage_json(usages: Iterable[Usage]) -> Json:
    """The sum over the answers of one call."""
    known = list(usages)
    prompt_tokens = sum(usage.prompt_tokens for usage in known)
    completion_tokens = sum(usage.completion_tokens for usage in known)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in known)},
    }
