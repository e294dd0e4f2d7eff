"""LLM: the blocking, offline face of AsyncLLM."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from legato.core.config import EngineConfig
from legato.core.errors import ModelError, NotReadyError
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.settings import resolve_settings
from legato.frontend.generator import ChatMessage, Prompt, TextDelta, Usage
from legato.frontend.open_llm import open_llm
from legato.ipc.client import EngineClient

Result = TypeVar("Result")

QUEUE_LEN = 2**31 - 1  # the one caller waits for all of its prompts: a bound would protect nobody


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one prompt; token_ids include the token that ended it, text does not."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage


class LLM:
    """A model in an engine process of its own.

        with LLM("smollm2-135m-instruct") as llm:
            print(llm.generate(["Hello, I am"], SamplingParams(max_tokens=20))[0].text)

    Keyword arguments are the flags of `legato serve` with underscores; LEGATO_* variables count too.
    Raises ConfigError for an argument that does not fit, ModelError when the model cannot be loaded so.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        client: EngineClient | None = None,
        **settings: Any,
    ) -> None:
        given = {"max_num_queued_reqs": QUEUE_LEN, **settings}
        if model is not None:
            given["model"] = os.fspath(model)
        self.config = resolve_settings(EngineConfig, given).value
        opened = open_llm(self.config, client)
        self._llm = opened.llm
        self._default_params = opened.default_params
        try:
            _run(self._llm.wait_ready())
        except NotReadyError as error:
            self.close()
            raise ModelError(str(error)) from error

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Complete each prompt, a text or token ids; answers come in the order of the prompts.

        Without params the model's own sampling defaults hold, and at most 16 tokens are made.
        Raises RequestError naming the field at fault; then no prompt is computed.
        """
        many = _listed(prompts)
        if not many:
            return []
        return _run(self._generate(many, params or SamplingParams(**self._default_params)))

    def chat(self, messages: Sequence[ChatMessage], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation; without params up to the end of the context."""
        if params is None:
            params = SamplingParams(**{"max_tokens": None, **self._default_params})
        return _run(self._chat(messages, params))

    def close(self) -> None:
        """End the engine process."""
        self._llm.client.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _chat(self, messages: Sequence[ChatMessage], params: SamplingParams) -> Completion:
        return (await self._generate([await self._llm.chat_prompt(messages)], params))[0]

    async def _generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]:
        answers: list[list[TextDelta]] = [[] for _ in prompts]
        async for delta in await self._llm.submit(prompts, params):
            answers[delta.index].append(delta)
        return [_completion(deltas) for deltas in answers]


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _completion(deltas: Sequence[TextDelta]) -> Completion:
    """One whole answer, from the deltas of all its steps."""
    last = deltas[-1]
    assert last.finish_reason is not None
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        finish_reason=last.finish_reason,
        usage=last.usage,
    )


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
