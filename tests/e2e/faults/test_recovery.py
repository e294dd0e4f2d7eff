"""Engines that die under load: every answer is the one of an undisturbed run, token for token."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from legato.core.config import EngineConfig
from legato.core.errors import PoisonedRequestError
from legato.core.sampling_params import SamplingParams
from legato.frontend.async_llm import AsyncLLM
from legato.frontend.generator import TextDelta
from legato.ipc.client import ProcessClient
from legato.ipc.supervisor import EngineProcess, RestartBudget, start_engine
from legato.tokenization.grammar_check import GrammarChecker
from legato.tokenization.grammar_text import json_schema_grammar, lark_json, lark_text
from legato.tokenization.tokenizer import load_tokenizer
from tests.frontend.answers import Answered

NUM_STREAMS = 16
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "kind": {"enum": ["talk", "break"]},
        "notes": {"type": "array", "items": {"type": "string"}, "minItems": 3},
    },
    "required": ["id", "kind", "notes"],
}
JSON = json_schema_grammar(SCHEMA)
CALL = f"start: {lark_text('<call>')} {lark_json(SCHEMA)} {lark_text('</call>')}"
POISON = 5  # a token that no other prompt holds, and that no answer does


class Engines:
    """Starts engines, and kills the one that runs."""

    def __init__(self, module: str = "legato.engine") -> None:
        self.started: list[EngineProcess] = []
        self._module = module

    def __call__(self) -> EngineProcess:
        self.started.append(start_engine(self._module))
        return self.started[-1]

    def kill(self, how: signal.Signals) -> None:
        self.started[-1].process.send_signal(how)


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def llm(tiny_model: Path, engines: Engines) -> Iterator[AsyncLLM]:
    yield from open_llm(tiny_model, engines)


def open_llm(model: Path, engines: Engines) -> Iterator[AsyncLLM]:
    config = EngineConfig(model=str(model), watchdog_s=2)
    client = ProcessClient(config, spawn=engines, budget=RestartBudget([0.0] * 5))
    tokenizer = load_tokenizer(model)
    checker = GrammarChecker(tokenizer, model / "tokenizer.json")
    yield AsyncLLM(client, tokenizer, None, grammar_checker=checker)
    client.close()


def mixed_params(index: int) -> SamplingParams:
    """Greedy, seeded, penalised, with logprobs, with stop texts, as JSON, as a call of a tool."""
    kind = index % 6
    return SamplingParams(
        max_tokens=60 + 5 * index,
        ignore_eos=True,
        temperature=0 if kind == 0 else 1,
        seed=index,
        frequency_penalty=0.5 if kind == 1 else 0,
        repetition_penalty=1.1 if kind == 1 else 1,
        logprobs=2 if kind == 2 else None,
        prompt_logprobs=1 if kind == 2 else None,
        stop=("ab", "qu", "é") if kind == 3 else (),
        grammar={4: JSON, 5: CALL}.get(kind),
    )


def summary(answer: Answered) -> tuple[object, ...]:
    """All that a client sees but for the count of cached tokens, which depends on who came before."""
    logprobs = [each for delta in answer.deltas for each in delta.prompt_logprobs + delta.logprobs]
    return answer.text, answer.token_ids, logprobs, answer.finish_reason, answer.stop_reason


async def answers(llm: AsyncLLM, kills: "Kills | None" = None) -> list[tuple[object, ...]]:
    """The answers to all streams at once."""

    async def one(index: int) -> tuple[object, ...]:
        stream = await llm.submit([f"prompt {index}"], mixed_params(index))
        return summary(Answered([delta async for delta in _counted(stream, kills)]))

    return list(await asyncio.gather(*(one(index) for index in range(NUM_STREAMS))))


async def _counted(stream: AsyncIterator[TextDelta], kills: "Kills | None") -> AsyncIterator[TextDelta]:
    async for delta in stream:
        if kills is not None:
            kills.count(len(delta.token_ids))
        yield delta


class Kills:
    """Sends a signal to the engine whenever so many more tokens have come, `num_left` times."""

    def __init__(self, engines: Engines, rng: random.Random, how: signal.Signals, num_left: int) -> None:
        self.num_left = num_left
        self._engines, self._rng, self._how = engines, rng, how
        self._tokens_left = rng.randrange(1, 400)

    def count(self, num_tokens: int) -> None:
        self._tokens_left -= num_tokens
        if self._tokens_left <= 0 and self.num_left:
            self._tokens_left = self._rng.randrange(1, 400)
            self.num_left -= 1
            self._engines.kill(self._how)


@pytest.mark.parametrize(
    ("how", "num_kills"),
    [
        (signal.SIGKILL, 10),
        (signal.SIGSTOP, 2),
        pytest.param(signal.SIGKILL, 200, marks=pytest.mark.slow),
        pytest.param(signal.SIGSEGV, 20, marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, 10, marks=pytest.mark.slow),
    ],
)
def test_no_token_is_lost_repeated_or_different_when_engines_die(
    llm: AsyncLLM, engines: Engines, how: signal.Signals, num_kills: int
) -> None:
    async def main() -> None:
        undisturbed = await answers(llm)
        kills = Kills(engines, random.Random(num_kills), how, num_kills)
        while kills.num_left:
            assert await answers(llm, kills) == undisturbed

    asyncio.run(main())
    assert len(engines.started) > num_kills // 2  # some signals meet an engine that is dying already


@pytest.mark.parametrize("fault", ["crash", "raise", "exhaust", "hang"])
def test_request_that_breaks_engines_ends_alone_and_the_others_go_on(
    tiny_model: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_TEST_POISON", str(POISON))
    monkeypatch.setenv("LEGATO_TEST_FAULT", fault)
    engines = Engines("tests.e2e.faults.faulty_engine")

    async def poisonous(llm: AsyncLLM) -> str:
        with pytest.raises(PoisonedRequestError, match="no other beside it") as poisoned:
            [_ async for _ in await llm.submit([[1, POISON, 2]], SamplingParams(max_tokens=9))]
        return str(poisoned.value)

    async def main(llm: AsyncLLM) -> None:
        undisturbed = await answers(llm)
        assert len(engines.started) == 1
        disturbed, _ = await asyncio.gather(answers(llm), poisonous(llm))
        assert disturbed == undisturbed
        assert await answers(llm) == undisturbed

    for llm in open_llm(tiny_model, engines):
        asyncio.run(main(llm))
    assert len(engines.started) == 4
