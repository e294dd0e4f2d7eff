"""LLM: the blocking, offline face of AsyncLLM."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Never, TypeVar

from legato.core.config import EngineConfig
from legato.core.errors import ClosedError, ModelError, NotReadyError, RequestError
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.settings import resolve_settings, unknown_variables
from legato.frontend.generator import ChatMessage, Prompt, TextDelta, Usage
from legato.frontend.open_llm import open_llm
from legato.ipc.engine_client import EngineClient

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

QUEUE_LEN = 2**31 - 1  # the one caller waits for all of its prompts: a bound would protect nobody


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one prompt; token_ids include the token that ended it, text does not.

    logprobs         of each of token_ids, when the params ask for them
    prompt_logprobs  of each token of the prompt but its first, likewise
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


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
        for warning in unknown_variables():
            logger.warning(warning)
        opened = open_llm(self.config, client)
        self._llm = opened.llm
        self._default_params = opened.default_params
        try:
            _run(self._llm.wait_ready())
        except NotReadyError as error:
            self.close()
            raise ModelError(str(error)) from error

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None, **unknown: Never
    ) -> list[Completion]:
        """Complete each prompt, a text or token ids; answers come in the order of the prompts.

        Without params the model's own sampling defaults hold, and at most 16 tokens are made.
        Raises RequestError naming the argument or field at fault; then no prompt is computed. ClosedError
        after close().
        """
        _refuse("generate", unknown)
        many, params = _listed(prompts), self._checked(params)
        return self._ask(self._generate(many, params)) if many else []

    def chat(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None = None, **unknown: Never
    ) -> Completion:
        """Answer a conversation; without params up to the end of the context. Raises as generate() does."""
        _refuse("chat", unknown)
        return self._ask(self._chat(messages, self._checked(params, max_tokens=None)))

    def close(self) -> None:
        """End the engine process."""
        self._llm.client.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, params: SamplingParams | None, **defaults: Any) -> SamplingParams:
        """The params, else the model's own over `defaults`."""
        if params is None:
            return SamplingParams(**{**defaults, **self._default_params})
        if isinstance(params, SamplingParams):
            return params
        raise RequestError(
            "params must be one SamplingParams for all prompts, such as SamplingParams(max_tokens=20),"
            f" not of type {type(params).__name__}",
            param="params",
        )

    def _ask(self, question: Coroutine[Any, Any, Result]) -> Result:
        try:
            return _run(question)
        except ClosedError:
            raise ClosedError("this LLM is closed; open another one") from None

    async def _chat(self, messages: Sequence[ChatMessage], params: SamplingParams) -> Completion:
        prompt = await self._llm.chat_prompt(messages)
        try:
            return (await self._generate([prompt], params))[0]
        except RequestError as error:
            error.param = "messages" if error.param == "prompt" else error.param
            raise

    async def _generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]:
        answers: list[list[TextDelta]] = [[] for _ in prompts]
        async for delta in await self._llm.submit(prompts, params):
            answers[delta.index].append(delta)
        return [_completion(deltas) for deltas in answers]


def _refuse(method: str, unknown: Mapping[str, object]) -> None:
    """Raise TypeError for keyword arguments that `method` does not have, with a word on what it takes."""
    for name in unknown:
        raise TypeError(f"{method}() has no argument {name!r}; settings go in as params=SamplingParams(...)")


def _listed(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise RequestError(
            "prompts must be a text, a list of token ids or a list of such prompts,"
            f" not of type {type(prompts).__name__}",
            param="prompts",
        )
    return [prompts] if prompts and isinstance(prompts[0], int) else list(prompts)


def _completion(deltas: Sequence[TextDelta]) -> Completion:
    """One whole answer, from the deltas of all its steps."""
    last = deltas[-1]
    assert last.finish_reason is not None
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=[logprobs for delta in deltas for logprobs in delta.logprobs],
        prompt_logprobs=list(deltas[0].prompt_logprobs),
    )


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
