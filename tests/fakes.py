"""Doubles that several test folders share."""

import asyncio
import codecs
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from legato.core.errors import QueueTimeoutError, RequestError
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.timing import Course, Timing
from legato.frontend.generator import ChatMessage, Prompt, TextDelta, TokenizerInfo, Usage
from legato.modelfiles.model_config import ModelConfig
from legato.models.registry import build_program
from legato.program.ops import weights_of
from legato.tokenization.messages import plain_messages
from legato.tokenization.tool_calls.hermes import HERMES
from legato.tokenization.tool_calls.tools import Tool


def random_model(
    seed: int, *, num_layers: int = 2, vocab_size: int = 2048, tie_word_embeddings: bool = False
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """A llama of the default model's widths with seeded weights, scaled so that its answers are varied text.

    Every product keeps values near 1 and logits have a standard deviation near 3, as in a trained model.
    """
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        file_format="hf",
        source="random",
        settings={
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": vocab_size,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": tie_word_embeddings,
        },
        vocab_size=vocab_size,
        eos_ids=frozenset({2}),
    )
    return config, natural_weights(config, seed)


def natural_weights(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Seeded weights for any config, scaled as those of random_model."""
    rng = np.random.default_rng(seed)
    weights = {}
    for op in build_program(config).ops:
        for weight in weights_of(op):
            values = rng.standard_normal(weight.shape, dtype=np.float32)
            if len(weight.shape) == 1:
                values = 1 + values / 10
            elif weight.name == "lm_head":
                values *= 3 / np.sqrt(weight.shape[1], dtype=np.float32)
            elif weight.name != "embed_tokens":
                values *= 1 / np.sqrt(weight.shape[1], dtype=np.float32)
            weights[weight.name] = values.astype(np.float32)
    return weights


class ByteVocabulary:
    """Implements Vocabulary: 256 bytes."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def fake_logprobs(token_id: int, num_top: int | None) -> list[TokenLogprobs]:
    """-id/64 for each token, and the neighbours of `token_id` as the most probable ones."""
    if num_top is None:
        return []
    top_ids = tuple(sorted((token_id + step) % 256 for step in range(num_top)))
    return [TokenLogprobs(-token_id / 64, top_ids, tuple(-top_id / 64 for top_id in top_ids))]


class FakeGenerator:
    """Implements Generator: a token is a byte of UTF-8, and a prompt is answered by `output`, or by itself.

    refusal           raised by submit()
    failure           raised by the stream in place of what follows `fail_after` deltas
    is_queue_stuck    submit() never returns
    pause_after       deltas after which the stream waits for `resumed`; None = it never does
    tokens_per_delta  of each answer in each step
    Records the calls of submit() and how many answers were aborted.
    """

    max_model_len = 1024
    tool_format = HERMES
    vocabulary = ByteVocabulary()

    def __init__(self, output: str | None = None, *, cached_tokens: int = 0) -> None:
        self.output = output
        self.cached_tokens = cached_tokens
        self.tokens_per_delta = 1
        self.refusal: Exception | None = None
        self.failure: Exception | None = None
        self.fail_after = 0
        self.is_queue_stuck = False
        self.pause_after: int | None = None
        self.resumed = asyncio.Event()
        self.submissions: list[dict[str, Any]] = []
        self.num_aborted = 0
        self.first_token_at: float | None = None

    async def submit(
        self, prompts: Sequence[Prompt], params: SamplingParams, *, n: int = 1, **options: Any
    ) -> "FakeTextStream":
        if self.refusal is not None:
            raise self.refusal
        if self.is_queue_stuck:
            await asyncio.Event().wait()
        self.submissions.append(
            {"prompts": list(prompts), "params": params, **options} | ({"n": n} if n > 1 else {})
        )
        texts = [prompt if isinstance(prompt, str) else self._text(prompt) for prompt in prompts]
        for text in texts:
            self._check(text, params)
        repeated = [text for text in texts for _ in range(n)]
        deltas = [list(self._deltas(i, text, params)) for i, text in enumerate(repeated)]
        return FakeTextStream(self, deltas, [list(text.encode()) for text in texts])

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
        plain = plain_messages(messages)
        text = "".join(f"<{tool.name}>" for tool in tools)
        text += "".join(f"<{message['role']}>{message['content']}" for message in plain)
        text += "".join(f"<{name}={value}>" for name, value in template_kwargs.items())
        text = "^" * add_special_tokens + text + "+" * continue_final_message
        return list((text + "<assistant>" * add_generation_prompt).encode())

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._text(token_ids)

    def tokenizer_info(self) -> TokenizerInfo:
        return TokenizerInfo(special_tokens={"eos": "<end>"}, chat_template="{{ messages }}", vocab_size=256)

    def _text(self, token_ids: Sequence[int]) -> str:
        if not all(0 <= token_id < 256 for token_id in token_ids):
            raise RequestError(
                "a token id is not in the vocabulary of 256", param="prompt", code="invalid_token_id"
            )
        return bytes(token_ids).decode(errors="replace")

    def _check(self, text: str, params: SamplingParams) -> None:
        length = len(text.encode()) + (params.max_tokens or 1)
        if not text:
            raise RequestError("the prompt is empty", param="prompt")
        if length > self.max_model_len:
            raise RequestError(
                f"{length} tokens, above the context of {self.max_model_len}",
                param="prompt",
                code="context_length_exceeded",
            )

    def _deltas(self, index: int, prompt: str, params: SamplingParams) -> Iterator[TextDelta]:
        output = (self.output if self.output is not None else prompt).encode()
        tokens = output[: params.max_tokens]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, sent_len = "", 0
        for start in range(0, max(len(tokens), 1), self.tokens_per_delta):
            step = tokens[start : start + self.tokens_per_delta]
            end = start + len(step)
            text += decoder.decode(step, final=end == len(tokens))
            stop = next((stop for stop in params.stop if stop in text), None)
            if stop is not None:
                text = text[: text.index(stop)]
                reason = FinishReason.STOP
            elif end == len(tokens):
                reason = FinishReason.STOP if len(tokens) == len(output) else FinishReason.LENGTH
            else:
                reason = None
            held_len = 0 if reason else _held_len(text, params.stop)
            yield TextDelta(
                index=index,
                text=text[sent_len : len(text) - held_len],
                token_ids=tuple(step),
                usage=Usage(len(prompt.encode()), end, self.cached_tokens),
                finish_reason=reason,
                stop_reason=stop,
                logprobs=_all_logprobs(step, params.logprobs),
                timing=Timing(0.25, 0.5, end / 100),
                prompt_logprobs=() if start else _all_logprobs(prompt.encode()[1:], params.prompt_logprobs),
            )
            if reason:
                return
            sent_len = len(text) - held_len


class FakeTextStream:
    """Implements TextStream: one delta of each prompt a step, the last prompt first."""

    def __init__(
        self, generator: FakeGenerator, deltas: list[list[TextDelta]], prompts: list[list[int]]
    ) -> None:
        self.prompts = prompts
        self.courses = [Course(time.perf_counter()) for _ in deltas]
        self.request_ids = [f"fake-{index}" for index in range(len(deltas))]
        self.first_token_at = generator.first_token_at
        self._generator = generator
        self._deltas = deltas
        self._unfinished = dict.fromkeys(range(len(deltas)))
        self._is_closed = False
        self._abort_reason: FinishReason | None = None

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        generator = self._generator
        steps = zip_longest(*reversed(self._deltas))
        for number, delta in enumerate(delta for step in steps for delta in step if delta is not None):
            if generator.failure is not None and number == generator.fail_after:
                raise generator.failure
            if number == generator.pause_after:
                await generator.resumed.wait()
            if self._abort_reason is not None:
                break
            if delta.finish_reason is not None:
                del self._unfinished[delta.index]
            yield delta
        if self._abort_reason is FinishReason.TIMEOUT and generator.pause_after == 0:
            raise QueueTimeoutError
        for index in tuple(self._unfinished):
            del self._unfinished[index]
            yield TextDelta(
                index=index, text="", token_ids=(), usage=Usage(1, 1), finish_reason=self._abort_reason
            )

    def abort(self, reason: FinishReason = FinishReason.ABORT) -> None:
        self._abort_reason = reason
        self._generator.resumed.set()

    async def aclose(self) -> None:
        if not self._is_closed:
            self._generator.num_aborted += len(self._unfinished)
        self._is_closed = True


def _all_logprobs(token_ids: bytes, num_top: int | None) -> tuple[TokenLogprobs, ...]:
    return tuple(each for token_id in token_ids for each in fake_logprobs(token_id, num_top))


def _held_len(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of `text` that may be the beginning of a stop text."""
    lengths = range(1, 1 + max(map(len, stops), default=0))
    return max((n for n in lengths for stop in stops if n < len(stop) and text.endswith(stop[:n])), default=0)
