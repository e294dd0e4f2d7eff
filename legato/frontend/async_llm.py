"""AsyncLLM: text in, text out, over an engine client; tokenizes, submits, detokenizes, aborts on cancel."""

import asyncio
import math
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from legato.core.errors import OverloadedError, RequestError, SlowFirstTokenError
from legato.core.request_limits import RequestLimits
from legato.core.sampling_params import SamplingParams
from legato.frontend.answer import Answer
from legato.frontend.answer_stream import AnswerStream
from legato.frontend.generator import CONTEXT, ChatMessage, Prompt, TokenizerInfo, Vocabulary
from legato.ipc.engine_client import EngineClient
from legato.ipc.messages import AddRequest, Ready
from legato.tokenization.chat_template import ChatTemplate
from legato.tokenization.grammar_check import GrammarChecker
from legato.tokenization.messages import plain_messages
from legato.tokenization.tokenizer import Tokenizer
from legato.tokenization.tool_calls.formats import choose_format
from legato.tokenization.tool_calls.spelled_out import fit_to_template
from legato.tokenization.tool_calls.tools import Tool

START_TIMEOUT_S = 120.0
CHARS_PER_TOKEN = 8  # a prompt of more characters, or ids, a token of context is refused before any work
LONG_TEXT_CHARS = 4096  # more text in one call, or more ids, is converted off the event loop
NUM_CONVERTERS = 2  # threads for that; more would only take the interpreter from the event loop
MAX_CONVERSIONS = 1024  # running and waiting for a thread
CONVERSION_RETRY_S = 1.0
TOKENIZER_REMEDY = "where it is the only model, the setting tokenizer names one (--tokenizer DIR_OR_FILE)"

Result = TypeVar("Result")


class AsyncLLM:
    """Implements Generator for one model. Holds nothing of an event loop between two calls."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        *,
        grammar_checker: GrammarChecker | None = None,
        seed: int | None = None,
        tool_call_parser: str = "auto",
        name: str = "this model",
    ) -> None:
        """name  of the model, for errors"""
        self.client = client
        self._name = name
        self.tokenizer = tokenizer
        source = "" if chat_template is None else chat_template.source
        self.tool_format = choose_format(tool_call_parser, source, tokenizer)
        self._chat_template = chat_template
        self._grammar_checker = grammar_checker
        self._converters = ThreadPoolExecutor(NUM_CONVERTERS, "text-converter")
        self._conversions = threading.BoundedSemaphore(MAX_CONVERSIONS)
        self._seeds = random.Random(secrets.randbits(64) if seed is None else seed)

    @property
    def vocabulary(self) -> Vocabulary | None:
        return self.tokenizer

    @property
    def can_chat(self) -> bool:
        return self.tokenizer is not None and self._chat_template is not None

    async def submit(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        truncate_prompt_tokens: int | None = None,
        add_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
        first_token_by: float | None = None,
    ) -> AnswerStream:
        if params.stop and self.tokenizer is None:
            raise RequestError(
                "stop texts need a tokenizer, and this model has none; use stop_token_ids", param="stop"
            )
        ready = await self.wait_ready()
        limits = _limits(ready)
        kept_len = _kept_len(truncate_prompt_tokens, params, limits)
        id_lists = await self._encode(prompts, ready, add_special_tokens=add_special_tokens)
        id_lists = [token_ids[-kept_len:] for token_ids in id_lists]
        for token_ids in id_lists:
            limits.max_device_len(token_ids, params)  # all are checked before one is queued
        params = await self._with_checked_grammar(params, ready, tenant)
        requests = [
            AddRequest(
                request_id=secrets.token_hex(12),
                token_ids=token_ids,
                params=params,
                seed=seed,
                priority=priority,
                cache_salt=cache_salt,
                tenant=tenant,
            )
            for token_ids in id_lists
            for seed in self._answer_seeds(params, n)
        ]
        answers = {
            request.request_id: Answer(index, request.token_ids, params, self.tokenizer, shown_ids)
            for index, request in enumerate(requests)
        }
        first_token_at = self._predict(id_lists, cache_salt, tenant, first_token_by)
        stream = AnswerStream(self.client, answers, id_lists, first_token_at)
        self.client.submit(requests, stream.sink)
        await stream.accepted()
        return stream

    async def chat_prompt(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> list[int]:
        template = self._need_chat_template()
        fitted = fit_to_template(plain_messages(messages), tools, template, self.tool_format)
        num_chars = sum(
            len(content) for message in fitted if isinstance(content := message.get("content"), str)
        )
        _check_len(num_chars, "characters", await self.wait_ready(), param="messages")
        render = partial(
            template.render,
            fitted,
            add_generation_prompt,
            continue_final_message,
            tools=[tool.for_template() for tool in tools] or None,
            **template_kwargs,
        )
        text = await self._convert(render)
        try:
            token_ids = await self.tokenize(text, add_special_tokens=add_special_tokens)
        except RequestError as error:
            error.param = "messages"  # the caller gave no other prompt
            raise
        begins_twice = token_ids[:2] == [self._need_tokenizer("messages").bos_id] * 2
        return token_ids[1:] if begins_twice else token_ids  # most templates write bos themselves

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ready = await self.wait_ready()
        return (await self._encode([text], ready, add_special_tokens=add_special_tokens))[0]

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        ready = await self.wait_ready()
        _check_len(len(token_ids), "ids", ready, param="tokens")
        decode = partial(self._decode_now, token_ids, ready.vocab_size)
        return await self._convert(decode) if len(token_ids) > LONG_TEXT_CHARS else decode()

    def tokenizer_info(self) -> TokenizerInfo:
        tokenizer, template = self._need_tokenizer("model"), self._chat_template
        return TokenizerInfo(
            special_tokens=tokenizer.special_tokens,
            chat_template=None if template is None else template.source,
            vocab_size=tokenizer.vocab_size,
        )

    async def wait_ready(self) -> Ready:
        """What the engine can take; sleeps while it is loading. Raises NotReadyError, ClosedError."""
        if (ready := self.client.ready) is not None:
            return ready
        self.client.start()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await asyncio.wrap_future(self.client.when_ready())
        except TimeoutError:
            return self.client.wait_ready(0)

    def close(self) -> None:
        """End the engine, and what was started here."""
        self.client.close()
        self._converters.shutdown(wait=False)
        if self._grammar_checker is not None:
            self._grammar_checker.close()

    async def _encode(
        self, prompts: Sequence[Prompt], ready: Ready, *, add_special_tokens: bool
    ) -> list[list[int]]:
        """The ids of each prompt. Raises RequestError, before any work, when one is far too long."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        id_lists = [prompt for prompt in prompts if isinstance(prompt, list | tuple)]
        _check_len(max(map(len, texts), default=0), "characters", ready, param="prompt")
        _check_len(max(map(len, id_lists), default=0), "ids", ready, param="prompt")
        encode = partial(self._encode_now, prompts, add_special_tokens)
        return await self._convert(encode) if sum(map(len, texts)) > LONG_TEXT_CHARS else encode()

    def _predict(
        self, id_lists: Sequence[Sequence[int]], cache_salt: str, tenant: str, deadline: float | None
    ) -> float | None:
        """When the first prompt's first token will come.

        Raises SlowFirstTokenError if that is after the deadline, and it would come earlier without others.
        """
        now = time.perf_counter()
        limit_s = math.inf if deadline is None else deadline - now
        predicted = self.client.first_token(id_lists[0], cache_salt, tenant, limit_s) if id_lists else None
        if predicted is None:
            return None
        first_token_at = now + predicted.wait_s
        if deadline is None or first_token_at <= deadline:
            return first_token_at
        if predicted.wait_s <= predicted.alone_s:  # nobody waits for it; and what was never let in was
            return first_token_at  # never measured, so that a wrong guess would stand for ever
        raise SlowFirstTokenError(
            f"the first token is predicted to take {predicted.wait_s:.3g} s, more than this server allows: it"
            " computes prompts and answers that came before; try again after the time in Retry-After",
            retry_after_s=predicted.retry_s,
            first_token_at=first_token_at,
        )

    async def _with_checked_grammar(
        self, params: SamplingParams, ready: Ready, tenant: str
    ) -> SamplingParams:
        """Params whose grammar the engine can build. Raises RequestError when it is none."""
        if params.grammar is None:
            return params
        if self._grammar_checker is None:
            raise RequestError(
                "this model has no tokenizer, so its answers cannot be held to a grammar",
                param="grammar",
                code="unsupported",
            )
        checked = await self._grammar_checker.check(params.grammar, ready.eos_ids, tenant)
        return replace(params, grammar=checked)

    async def _convert(self, work: Callable[[], Result]) -> Result:
        """The result of `work` in a thread for conversions. Raises OverloadedError when many wait for one."""
        if not self._conversions.acquire(blocking=False):
            raise OverloadedError(
                f"{MAX_CONVERSIONS} long prompts are being prepared; try again soon",
                retry_after_s=CONVERSION_RETRY_S,
            )
        try:
            return await asyncio.wrap_future(self._converters.submit(work))
        finally:
            self._conversions.release()

    def _answer_seeds(self, params: SamplingParams, n: int) -> list[int]:
        """A seed for each answer to one prompt: the first is the params' own, and all follow from it."""
        first = self._seeds.getrandbits(63) if params.seed is None else params.seed
        return [first, *(random.Random(f"{first}/{index}").getrandbits(63) for index in range(1, n))]

    def _decode_now(self, token_ids: Sequence[int], vocab_size: int) -> str:
        bad = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is not in the vocabulary of {vocab_size}", param="tokens")
        return self._need_tokenizer("tokens").decode(list(token_ids), skip_special_tokens=False)

    def _encode_now(self, prompts: Sequence[Prompt], add_special_tokens: bool) -> list[list[int]]:
        return [self._ids_of(prompt, add_special_tokens) for prompt in prompts]

    def _ids_of(self, prompt: Prompt, add_special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            return self._need_tokenizer("prompt").encode(prompt, add_special_tokens=add_special_tokens)
        if isinstance(prompt, list | tuple):
            return list(prompt)
        raise RequestError(
            f"a prompt must be a text or a list of token ids, not of type {type(prompt).__name__}",
            param="prompt",
        )

    def _need_chat_template(self) -> ChatTemplate:
        if self.tokenizer is None:
            raise RequestError(
                f"{self._name} has no tokenizer, and so no chat: complete a prompt of token ids instead"
                f" (/v1/completions; in Python generate()); {TOKENIZER_REMEDY}",
                param="messages",
            )
        if self._chat_template is None:
            raise RequestError(
                f"{self._name} has no chat template: complete a prompt instead (/v1/completions; in Python"
                " generate()); where it is the only model, the setting chat_template names a file with one",
                param="messages",
            )
        return self._chat_template

    def _need_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"this model has no tokenizer: give token ids instead of text; {TOKENIZER_REMEDY}",
                param=param,
            )
        return self.tokenizer


def _check_len(count: int, unit: str, ready: Ready, *, param: str) -> None:
    maximum = CHARS_PER_TOKEN * ready.max_model_len
    if count > maximum:
        raise RequestError(
            f"the prompt has {count} {unit}; a context of {ready.max_model_len} tokens takes"
            f" at most {maximum}",
            param=param,
            code="context_length_exceeded",
        )


def _kept_len(truncate_prompt_tokens: int | None, params: SamplingParams, limits: RequestLimits) -> int:
    """How many tokens of each prompt are kept, at most."""
    if truncate_prompt_tokens is None:
        return sys.maxsize
    if truncate_prompt_tokens == CONTEXT:
        output_len = 1 if params.max_tokens is None else params.max_tokens
        return max(1, min(limits.max_model_len, limits.pool_len + 1) - output_len)
    if truncate_prompt_tokens < 1:
        raise RequestError(
            f"truncate_prompt_tokens must be at least 1, or -1 for the context, not {truncate_prompt_tokens}",
            param="truncate_prompt_tokens",
        )
    return truncate_prompt_tokens


def _limits(ready: Ready) -> RequestLimits:
    return RequestLimits(
        max_model_len=ready.max_model_len,
        pool_len=ready.num_pages * ready.page_size,
        vocab_size=ready.vocab_size,
    )
