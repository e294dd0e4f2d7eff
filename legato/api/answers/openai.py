"""OpenAI's shapes of an answer: chunks of a stream, and the whole, from the same deltas."""

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from legato.api.answers.chat import ChatDelta
from legato.api.answers.logprobs import (
    CompletionLogprobs,
    TokenNames,
    chat_logprobs,
    prompt_logprobs_json,
)
from legato.api.answers.plain import Answer, ToolCall
from legato.api.answers.report import Report, echoed_text
from legato.api.answers.timings import timings_json
from legato.core.background import in_own_thread
from legato.frontend.generator import Prompt, TextDelta, TextStream, Usage, Vocabulary
from legato.tokenization.tool_calls.reader import ToolCallDelta

Json = dict[str, Any]

MANY_LOGPROBS = 256  # tokens, each with up to twenty others at its place: some milliseconds of work


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What stands in every part of an answer, and what its parts are made with.

    id       as new_id() makes them
    explain  makes the member of that name, where it is wanted
    """

    id: str
    model: str
    fingerprint: str
    report: Report
    vocabulary: Vocabulary | None
    explain: Callable[[], Json] | None


class OpenAIAnswer(ABC):
    """One call's answer.

    Where nobody asked for it, the key `usage` is left out of a chunk, not null: some clients fail on null.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    byte_prefix: ClassVar[str]  # of TokenNames

    def __init__(self, head: AnswerHead, prompts: Sequence[Sequence[int]]) -> None:
        """prompts: token ids of each prompt."""
        self._report = head.report
        self._explain = head.explain
        self._prompts = prompts
        self._names = TokenNames(head.vocabulary, head.report.tokens_as_ids, self.byte_prefix)
        self._head = {
            "id": head.id,
            "created": int(time.time()),
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    @classmethod
    def new_id(cls) -> str:
        """Made before the call is queued, so that the call can be ended by it."""
        return f"{cls.id_prefix}-{uuid.uuid4().hex}"

    async def whole(self, answers: Sequence[Answer]) -> Json:
        whole = await _beside_others(partial(self._whole, answers), answers)
        return whole | self._explain() if self._explain else whole

    def _whole(self, answers: Sequence[Answer]) -> Json:
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        usages = {index: answer.usage for index, answer in enumerate(answers)}
        usage = self._usage(usages)
        whole = {**self._head, "object": self.whole_object, "choices": choices, "usage": usage}
        if self._report.timings:
            whole["timings"] = timings_json([answer.timing for answer in answers], usage)
        return whole | self._beside_choices(answers[0])

    async def chunks(self, stream: TextStream) -> AsyncGenerator[Json, None]:
        """A chunk for each delta that shows something or ends an answer; the ids of others wait for it."""
        usages: dict[int, Usage] = {}
        started: set[int] = set()
        waiting: dict[int, TextDelta] = {}
        async for delta in stream:
            usages[delta.index] = delta.usage
            delta = _after(waiting.pop(delta.index, None), delta)
            is_first = delta.index not in started
            if not (_shows_something(delta) or (is_first and self._report.echo)):
                waiting[delta.index] = delta
                continue
            write = partial(self._part, delta, is_first=is_first, is_first_of_all=not started)
            chunk = await _beside_others(write, [delta])
            started.add(delta.index)
            if self._report.continuous_usage:
                chunk["usage"] = self._usage(usages)
            yield chunk | self._timings(delta)
        last = {"usage": self._usage(usages)} if self._report.include_usage else {}
        last |= self._explain() if self._explain else {}
        if last:
            yield self._chunk([]) | last

    def _part(self, delta: TextDelta, *, is_first: bool, is_first_of_all: bool) -> Json:
        chunk = self._chunk([self._chunk_choice(delta, is_first=is_first)])
        return chunk | self._beside_choices(delta) if is_first_of_all else chunk

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._head, "object": self.chunk_object, "choices": choices}

    def _timings(self, delta: TextDelta) -> Json:
        """Those of the chunk's one choice."""
        is_told = self._report.timings_per_token or (self._report.timings and delta.finish_reason is not None)
        return (
            {"timings": timings_json([delta.timing], usage_json([delta.usage], [delta.usage]))}
            if is_told
            else {}
        )

    def _usage(self, usages: Mapping[int, Usage]) -> Json:
        """A prompt counts once, as in the first of its answers that is known."""
        firsts = {index // self._report.n: usages[index] for index in sorted(usages, reverse=True)}
        return usage_json(firsts.values(), usages.values())

    def _prompt_of(self, index: int) -> Sequence[int]:
        return self._prompts[index // self._report.n]

    def _prompt_logprobs(self, index: int, part: Answer | TextDelta) -> Json:
        """vLLM's `prompt_logprobs`, when they were asked for."""
        num_top = self._report.prompt_logprobs
        if num_top is None:
            return {}
        prompt = self._prompt_of(index)
        return {"prompt_logprobs": prompt_logprobs_json(prompt, part.prompt_logprobs, self._names, num_top)}

    def _ids(self, part: Answer | TextDelta) -> Json:
        """vLLM's `token_ids`, when they were asked for."""
        return {"token_ids": list(part.token_ids)} if self._report.token_ids else {}

    def _beside_choices(self, first: Answer | TextDelta) -> Json:
        """What the whole has beside its choices, and the first chunk of a stream."""
        return {}

    @abstractmethod
    def _whole_choice(self, index: int, answer: Answer) -> Json: ...

    @abstractmethod
    def _chunk_choice(self, delta: TextDelta, *, is_first: bool) -> Json: ...


class ChatAnswer(OpenAIAnswer):
    """Answer of /v1/chat/completions, with vLLM's `stop_reason`: the stop text or id that matched."""

    id_prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    byte_prefix = ""

    def _whole_choice(self, index: int, answer: Answer) -> Json:
        message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.tool_calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
        return {"index": index, "message": message, **self._end_of_choice(answer)}

    def _chunk_choice(self, delta: TextDelta, *, is_first: bool) -> Json:
        """The role comes with what is said or called first: alone, it would pass for a first token."""
        calls = [_tool_call_part(call) for call in _calls(delta)]
        content: Json = {"content": delta.text or (None if calls else "")} if delta.text or is_first else {}
        role = {"role": "assistant"} if is_first else {}
        called = {"tool_calls": calls} if calls else {}
        return {"index": delta.index, "delta": role | content | called, **self._end_of_choice(delta)}

    def _end_of_choice(self, part: Answer | TextDelta) -> Json:
        num_top = self._report.logprobs
        return {
            "logprobs": (
                None
                if num_top is None
                else chat_logprobs(part.token_ids, part.logprobs, self._names, num_top)
            ),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            **self._ids(part),
        }

    def _beside_choices(self, first: Answer | TextDelta) -> Json:
        ids = {"prompt_token_ids": list(self._prompt_of(0))} if self._report.token_ids else {}
        return ids | self._prompt_logprobs(0, first)


class CompletionAnswer(OpenAIAnswer):
    """Answer of /v1/completions, with vLLM's `stop_reason`.

    prompts  token ids of each prompt
    echoed   the prompts whose text is echoed
    """

    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"
    byte_prefix = "bytes:"

    def __init__(
        self,
        head: AnswerHead,
        prompts: Sequence[Sequence[int]],
        echoed: Sequence[Prompt],
        *,
        skips_special_tokens: bool,
    ) -> None:
        super().__init__(head, prompts)
        vocabulary = head.vocabulary
        self._echoed = [echoed_text(prompt, vocabulary) if head.report.echo else "" for prompt in echoed]
        self._hidden_ids = vocabulary.special_ids if vocabulary and skips_special_tokens else frozenset()
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def _whole_choice(self, index: int, answer: Answer) -> Json:
        return self._choice(index, answer, is_first=True)

    def _chunk_choice(self, delta: TextDelta, *, is_first: bool) -> Json:
        return self._choice(delta.index, delta, is_first=is_first)

    def _choice(self, index: int, part: Answer | TextDelta, *, is_first: bool) -> Json:
        echoed = self._echoed[index // self._report.n]
        choice = {
            "index": index,
            "text": echoed + part.text if is_first else part.text,
            "logprobs": self._lists(index, part, is_first=is_first),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            **self._ids(part),
        }
        if is_first:
            choice |= self._prompt_logprobs(index, part)
            choice |= {"prompt_token_ids": list(self._prompt_of(index))} if self._report.token_ids else {}
        return choice

    def _lists(self, index: int, part: Answer | TextDelta, *, is_first: bool) -> Json | None:
        num_top = self._report.logprobs
        if num_top is None:
            return None
        if not is_first:
            return self._logprobs[index].answer(part.token_ids, part.logprobs)
        writer = self._logprobs[index] = CompletionLogprobs(self._names, num_top, self._hidden_ids)
        if not self._report.echo:
            return writer.answer(part.token_ids, part.logprobs)
        echoed = self._echoed[index // self._report.n]
        prompt = writer.prompt(echoed, self._prompt_of(index), part.prompt_logprobs)
        answer = writer.answer(part.token_ids, part.logprobs)
        return {name: prompt[name] + answer[name] for name in prompt}


async def _beside_others(write: Callable[[], Json], parts: Iterable[Answer | TextDelta]) -> Json:
    """What `write` makes of the parts; in a thread when their logprobs would hold up the event loop."""
    if sum(len(part.logprobs) + len(part.prompt_logprobs) for part in parts) <= MANY_LOGPROBS:
        return write()
    return await asyncio.wrap_future(in_own_thread("logprobs-writer", write))


def _calls(delta: TextDelta) -> tuple[ToolCallDelta, ...]:
    return delta.tool_calls if isinstance(delta, ChatDelta) else ()


def _tool_call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool_call_part(delta: ToolCallDelta) -> Json:
    """Id, type and name come once a call."""
    function = {"arguments": delta.arguments}
    if delta.id is None:
        return {"index": delta.position, "function": function}
    return {
        "index": delta.position,
        "id": delta.id,
        "type": "function",
        "function": {"name": delta.name, **function},
    }


def usage_json(prompts: Iterable[Usage], answers: Iterable[Usage]) -> Json:
    """The sum over the prompts and the answers of one call."""
    asked = list(prompts)
    prompt_tokens = sum(usage.prompt_tokens for usage in asked)
    completion_tokens = sum(usage.completion_tokens for usage in answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in asked)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _shows_something(delta: TextDelta) -> bool:
    return bool(delta.text or _calls(delta)) or delta.finish_reason is not None


def _after(earlier: TextDelta | None, delta: TextDelta) -> TextDelta:
    """`delta`, with the tokens of an earlier one that showed nothing."""
    if earlier is None:
        return delta
    return replace(
        delta,
        token_ids=earlier.token_ids + delta.token_ids,
        logprobs=earlier.logprobs + delta.logprobs,
        prompt_logprobs=earlier.prompt_logprobs + delta.prompt_logprobs,
    )
