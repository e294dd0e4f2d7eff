"""A streamed answer is the plain one, over random calls through the whole app and a real engine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from legato.api.app import create_app
from legato.core.config import EngineConfig, ServerConfig
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.async_llm import AsyncLLM
from legato.tokenization.chat_template import load_chat_template
from legato.tokenization.tokenizer import load_tokenizer
from tests.api.fake_service import FakeService
from tests.e2e.random_calls import Answered, Choice, ask, random_call, with_stops

AT_ONCE = 12


@pytest.fixture(scope="module")
def app(tiny_model: Path) -> Iterator[FastAPI]:
    engine = InprocClient(load_engine(EngineConfig(model=str(tiny_model), num_pages=256), lambda *_: None))
    engine.start()
    llm = AsyncLLM(engine, load_tokenizer(tiny_model), load_chat_template(tiny_model))
    yield create_app({"tiny": FakeService(llm, names=("tiny",))}, ServerConfig())
    engine.close()


async def compare(client: httpx2.AsyncClient, seed: int) -> Answered:
    """Ask one random call in both modes. Returns the plain answer."""
    random = Random(seed)
    path, body = random_call(random)
    body = with_stops(random, body, await ask(client, path, body))
    usage = random.choice([(True, True), (True, False), (False, True)])
    options = dict(zip(("include_usage", "continuous_usage_stats"), usage, strict=True))
    plain, streamed = await asyncio.gather(
        ask(client, path, body), ask(client, path, body | {"stream": True, "stream_options": options})
    )
    assert streamed == plain, (seed, path, body)
    check(body, plain)
    return plain


def check(body: dict[str, Any], answered: Answered) -> None:
    """What holds of every answer."""
    num_tokens = [len(choice.token_ids) for choice in answered.choices.values()]
    assert answered.usage["completion_tokens"] == sum(num_tokens)
    assert max(num_tokens) <= body["max_tokens"]
    for choice in answered.choices.values():
        assert len(choice.finish_reasons) == 1
        num_echoed = len(choice.prompt_token_ids or []) if body.get("echo") else 0
        for values in choice.logprobs.values():
            assert len(values) in (0, num_echoed + len(choice.token_ids))  # 0: refusal
        if choice.logprobs:
            assert text_of(choice, body, num_echoed).startswith(choice.text)
    prompts = {index // body["n"]: choice.prompt_token_ids for index, choice in answered.choices.items()}
    assert answered.usage["prompt_tokens"] == sum(map(len, filter(None, prompts.values())))


def text_of(choice: Choice, body: dict[str, Any], num_echoed: int) -> str:
    """The text of the tokens that have logprobs; a stop text, or half of one, may be its end."""
    if "content" in choice.logprobs:
        tokens = [(entry["token"], bytes(entry["bytes"])) for entry in choice.logprobs["content"]]
    else:
        tokens = [(token, bytes_of(token)) for token in choice.logprobs["tokens"]]
    if isinstance(choice.stop_reason, int) and not body["include_stop_str_in_output"]:
        tokens.pop()
    skipped_from = num_echoed if body["skip_special_tokens"] else len(tokens)
    shown = [data for place, (token, data) in enumerate(tokens) if token != "<|end|>" or place < skipped_from]
    return b"".join(shown).decode(errors="replace")


def bytes_of(token: str) -> bytes:
    """Of a token in the lists of completions."""
    is_text = not token.startswith("bytes:")
    return token.encode() if is_text else bytes.fromhex(token[6:].replace("\\x", ""))


@pytest.mark.parametrize(
    "num_calls", [pytest.param(60, id="short"), pytest.param(1000, id="full", marks=pytest.mark.slow)]
)
def test_streamed_and_plain_answers_are_equal_over_random_calls(app: FastAPI, num_calls: int) -> None:
    async def run() -> list[Answered]:
        free = asyncio.Semaphore(AT_ONCE)

        async def one(seed: int) -> Answered:
            async with free:
                return await compare(client, seed)

        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*map(one, range(num_calls)))

    choices = [choice for answered in asyncio.run(run()) for choice in answered.choices.values()]

    # that the calls were of all kinds
    assert {reason for choice in choices for reason in choice.finish_reasons} == {"stop", "length"}
    assert {type(choice.stop_reason) for choice in choices} == {str, int, type(None)}
    assert any("한" in choice.text for choice in choices)
    assert any("\ufffd" in choice.text for choice in choices)
    assert any(choice.token_ids and not choice.text for choice in choices)
    assert any("content" in choice.logprobs for choice in choices)
    assert any("text_offset" in choice.logprobs for choice in choices)
