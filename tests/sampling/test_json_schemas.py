"""Every answer of a random model that is held to a schema fits it, at temperature 1."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from legato.core.config import EngineConfig
from legato.core.errors import RequestError
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.async_llm import AsyncLLM
from legato.modelfiles.tokenizer_file import tokenizer_file
from legato.tokenization.grammar_check import GrammarChecker
from legato.tokenization.grammar_text import json_schema_grammar
from legato.tokenization.tokenizer import load_tokenizer
from tests.frontend.answers import Answered
from tests.sampling.json_schemas import REFUSED, SCHEMAS, Schema

MAX_TOKENS = 400
NUM_FULL = 16  # answers to each schema, in the full count
MAX_UNFINISHED_SHARE = 0.1  # a random model may go on and on within a text or a number
# A random model closes nothing: what ends texts, objects and answers is made more probable for it.
BIAS = {ord('"'): 5.0, ord("}"): 4.0, ord("]"): 4.0, ord(","): 2.0}

FORMATS = FormatChecker(formats=("date", "email", "ipv4", "ipv6", "uuid"))


@FORMATS.checks("date-time", ValueError)
def is_date_time(text: object) -> bool:
    return datetime.fromisoformat(str(text)) is not None


@FORMATS.checks("time", ValueError)
def is_time(text: object) -> bool:
    return is_date_time(f"2000-01-01T{text}")


@FORMATS.checks("hostname")
def is_hostname(text: object) -> bool:
    labels = str(text).split(".")
    return all(re.fullmatch("(?!-)[A-Za-z0-9-]{1,63}(?<!-)", label) for label in labels)


@FORMATS.checks("duration")
def is_duration(text: object) -> bool:
    return bool(re.fullmatch(r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)", str(text)))


@FORMATS.checks("uri", ValueError)
def is_uri(text: object) -> bool:
    return bool(urlsplit(str(text)).scheme)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[AsyncLLM]:
    config = EngineConfig(model=str(tiny_model), num_pages=2048, max_num_queued_reqs=10_000)
    client = InprocClient(load_engine(config, lambda *_: None))
    client.start()
    tokenizer, file = load_tokenizer(tiny_model), tokenizer_file(tiny_model)
    assert tokenizer is not None
    assert file is not None
    yield AsyncLLM(client, tokenizer, None, grammar_checker=GrammarChecker(tokenizer, file))
    client.close()


async def answers_to_all(llm: AsyncLLM, schemas: dict[str, Schema], n: int) -> dict[str, list[Answered]]:
    async def answers(number: int, schema: Schema) -> list[Answered]:
        eos_id = llm.client.wait_ready(0).eos_ids[0]
        params = SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=1.0,
            seed=number,
            grammar=json_schema_grammar(schema),
            logit_bias=BIAS | {eos_id: 4.0},
        )
        found = [Answered() for _ in range(n)]
        async for delta in await llm.submit([f"answer {number}:"], params, n=n):
            found[delta.index].deltas.append(delta)
        return found

    found = await asyncio.gather(*(answers(number, schema) for number, schema in enumerate(schemas.values())))
    return dict(zip(schemas, found, strict=True))


def check(llm: AsyncLLM, n: int) -> None:
    """Every answer that came to its end fits its schema; nearly all come to their end, and they vary."""
    answers = asyncio.run(answers_to_all(llm, SCHEMAS, n))
    num_unfinished, texts = 0, set()
    for name, schema in SCHEMAS.items():
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema, format_checker=FORMATS)
        for answer in answers[name]:
            if answer.finish_reason is FinishReason.LENGTH:
                num_unfinished += 1
                continue
            texts.add(answer.text)
            errors = [error.message for error in validator.iter_errors(json.loads(answer.text))]
            assert not errors, (name, answer.text, errors)
    assert num_unfinished <= MAX_UNFINISHED_SHARE * n * len(SCHEMAS), num_unfinished
    assert len(texts) > n * len(SCHEMAS) / 2


def test_there_are_enough_schemas() -> None:
    assert len(SCHEMAS) >= 100


def test_every_answer_fits_its_schema(llm: AsyncLLM) -> None:
    check(llm, n=1)


@pytest.mark.slow
def test_sixteen_answers_to_each_schema_fit_it(llm: AsyncLLM) -> None:
    check(llm, n=NUM_FULL)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_schema_says_beyond_understanding_is_refused_with_the_reason(llm: AsyncLLM, name: str) -> None:
    schema, word = REFUSED[name]
    params = SamplingParams(grammar=json_schema_grammar(schema))
    with pytest.raises(RequestError, match=word) as refusal:
        asyncio.run(llm.submit(["a"], params))
    assert (refusal.value.param, refusal.value.code) == ("grammar", "invalid_grammar")


@pytest.mark.parametrize("text", ["2023-02-29T00:00:00Z", "2024-02-30T00:00:00Z", "2024-01-01T24:00:00Z"])
def test_the_checks_of_formats_find_faults(text: str) -> None:
    validator = Draft202012Validator({"format": "date-time"}, format_checker=FORMATS)
    assert not validator.is_valid(text)
    assert not Draft202012Validator({"format": "ipv4"}, format_checker=FORMATS).is_valid("1.2.3")
