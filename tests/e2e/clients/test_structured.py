"""Structured output through real sockets: the official SDK, refusals, failures, and the default model."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from tests.e2e.conftest import Server, end_server, start_server
from tests.sampling.json_schemas import USES

BIAS = {str(ord('"')): 8, str(ord("}")): 8, str(ord("]")): 8}  # a random model closes nothing by itself


class Event(BaseModel):
    """What the SDK turns into a strict schema, and its answer back into."""

    kind: Literal["talk", "break"]
    day: int | None
    tags: list[Literal["a", "b"]]


@pytest.fixture(scope="module")
def sdk(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_sdk_parses_what_it_asked_for(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.parse(
        model="tiny",
        messages=[{"role": "user", "content": "when?"}],
        response_format=Event,
        logit_bias=BIAS,
        temperature=1,
        seed=3,
        max_completion_tokens=300,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Event)


def test_streamed_and_plain_answers_are_alike(server: Server, sdk: openai.OpenAI) -> None:
    asked = {
        "model": "tiny",
        "prompt": "pick",
        "temperature": 1,
        "seed": 5,
        "extra_body": {"structured_outputs": {"choice": ["first", "second", "한국"]}},
    }
    plain = sdk.completions.create(**asked)
    chunks = list(sdk.completions.create(stream=True, **asked))
    assert plain.choices[0].text in ("first", "second", "한국")
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert plain.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


def test_answers_of_one_call_differ_and_all_keep_to_the_form(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model="tiny", prompt="n", n=8, temperature=1, seed=1, extra_body={"guided_regex": "[a-z]{3}[0-9]{2}"}
    )
    texts = [choice.text for choice in answer.choices]
    assert all(len(text) == 5 and text[:3].isalpha() and text[3:].isdigit() for text in texts)
    assert len(set(texts)) > 4


def test_a_schema_that_is_not_understood_is_refused_and_names_the_field(server: Server) -> None:
    wrapped = {"name": "x", "schema": {"type": "object", "not": {"required": ["a"]}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    body["response_format"] = {"type": "json_schema", "json_schema": wrapped}
    status, answer = server.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "response_format")
    assert "not" in answer["error"]["message"]
    assert answer["error"]["code"] == "invalid_grammar"


def test_an_answer_that_cannot_keep_to_its_form_is_an_error_and_the_next_one_is_served(
    server: Server, sdk: openai.OpenAI
) -> None:
    body = {"prompt": "a", "guided_choice": ["ab"], "min_tokens": 9, "max_tokens": 20}
    status, answer = server.post("/v1/completions", body)
    assert (status, answer["error"]["code"]) == (500, "grammar_failed")
    with pytest.raises(openai.APIError, match="min_tokens is 9"):
        list(
            sdk.completions.create(model="tiny", stream=True, prompt="a", extra_body={**body, "prompt": "a"})
        )
    assert server.post("/v1/completions", {**body, "min_tokens": 0})[1]["choices"][0]["text"] == "ab"


@pytest.fixture(scope="module")
def default_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("default")
    home = os.environ.get("LEGATO_HOME") or str(Path.home() / ".cache" / "legato")
    server = start_server(folder, Path("smollm2-135m-instruct"), home=home, max_model_len=1024)
    yield server
    end_server(server)


@pytest.mark.model
def test_the_default_model_keeps_to_schemas(default_model: Server) -> None:
    """A .gguf file: its tokenizer is written for the engine to read. All answers are one batch."""

    def answer(name: str) -> tuple[str, dict[str, Any]]:
        body = {
            "messages": [{"role": "user", "content": f"Give me an example of: {name}"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": USES[name]}},
            "temperature": 1,
            "seed": 1,
            "max_tokens": 400,
        }
        status, found = default_model.post("/v1/chat/completions", body)
        assert status == 200, found
        return name, found["choices"][0]

    with ThreadPoolExecutor(len(USES)) as pool:
        answers = list(pool.map(answer, USES))
    ended = [(name, choice) for name, choice in answers if choice["finish_reason"] == "stop"]
    assert len(ended) >= 0.9 * len(answers)
    for name, choice in ended:
        Draft202012Validator(USES[name]).validate(json.loads(choice["message"]["content"]))
