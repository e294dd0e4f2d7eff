"""The Responses and Messages APIs through real sockets and a real engine, by their official clients."""

from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.e2e.conftest import Server

QUESTION = [{"role": "user", "content": "안녕 🧑‍🚀"}]


class City(BaseModel):
    """What an answer is parsed to."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


@pytest.fixture(scope="module")
def openai_sdk(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def anthropic_sdk(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"temperature": 1, "top_p": 0.9}],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("max_tokens", [1, 30])
def test_all_three_apis_give_the_same_answer_plain_and_streamed(
    openai_sdk: openai.OpenAI, anthropic_sdk: anthropic.Anthropic, options: dict[str, Any], max_tokens: int
) -> None:
    seeded: Any = {"model": "tiny", "extra_body": {"seed": 7, **options}}
    messages: Any = QUESTION
    chat = openai_sdk.chat.completions.create(messages=messages, max_tokens=max_tokens, **seeded)
    response = openai_sdk.responses.create(input=messages, max_output_tokens=max_tokens, **seeded)
    events = list(
        openai_sdk.responses.create(input=messages, max_output_tokens=max_tokens, stream=True, **seeded)
    )
    message = anthropic_sdk.messages.create(messages=messages, max_tokens=max_tokens, **seeded)
    with anthropic_sdk.messages.stream(messages=messages, max_tokens=max_tokens, **seeded) as stream:
        final = stream.get_final_message()

    text = chat.choices[0].message.content or ""
    assert response.output_text == text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].response.output_text == text  # type: ignore[union-attr]
    assert events[-1].response.usage.output_tokens == response.usage.output_tokens  # type: ignore[union-attr]
    texts = [
        "".join(block.text for block in each.content if block.type == "text") for each in (message, final)
    ]
    assert texts == [text, text]
    assert message.stop_reason == final.stop_reason
    assert message.usage.output_tokens == final.usage.output_tokens == chat.usage.completion_tokens  # type: ignore[union-attr]
    is_cut = chat.choices[0].finish_reason == "length"
    assert (response.status, message.stop_reason) == (
        ("incomplete", "max_tokens") if is_cut else ("completed", "end_turn")
    )


def test_count_of_tokens_is_that_of_the_prompt(anthropic_sdk: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "a prompt that is longer than two pages of tokens, surely"}]
    count = anthropic_sdk.messages.count_tokens(model="tiny", messages=messages)
    for _ in range(2):  # the second time most of it comes from the cache
        usage = anthropic_sdk.messages.create(model="tiny", messages=messages, max_tokens=1).usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
    assert (usage.cache_read_input_tokens or 0) >= 32


def test_refusals_are_the_clients_own_errors(
    openai_sdk: openai.OpenAI, anthropic_sdk: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.BadRequestError, match="context of 512") as refusal:
        openai_sdk.responses.create(model="tiny", input="a" * 600)
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(anthropic.BadRequestError, match="context of 512"):
        anthropic_sdk.messages.create(
            model="tiny", max_tokens=5, messages=[{"role": "user", "content": "a" * 600}]
        )
    with pytest.raises(anthropic.NotFoundError, match="served: tiny"):
        anthropic_sdk.messages.create(
            model="other", max_tokens=5, messages=[{"role": "user", "content": "a"}]
        )


def test_answers_are_parsed_to_the_form_that_was_asked_for(
    openai_sdk: openai.OpenAI, anthropic_sdk: anthropic.Anthropic
) -> None:
    messages: Any = QUESTION
    asked: Any = {"model": "tiny", "extra_body": {"temperature": 1, "seed": 5}}
    response = openai_sdk.responses.parse(input=messages, text_format=City, **asked)
    with openai_sdk.responses.stream(input=messages, text_format=City, **asked) as stream:
        streamed = stream.get_final_response()
    message = anthropic_sdk.messages.parse(messages=messages, max_tokens=100, output_format=City, **asked)
    assert isinstance(response.output_parsed, City)
    assert streamed.output_parsed == response.output_parsed == message.parsed_output
