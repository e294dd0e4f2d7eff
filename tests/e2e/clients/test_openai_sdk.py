"""OpenAI's own client against a real server: plain and streamed, blocking and async, its types filled."""

import asyncio
import math
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.e2e.conftest import Server

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "한국 the end"}]
CHAT = {
    "model": "tiny",
    "messages": MESSAGES,
    "max_tokens": 12,
    "seed": 5,
    "logprobs": True,
    "top_logprobs": 3,
}
IGNORE_EOS = {"ignore_eos": True}


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_chat_has_its_logprobs_in_the_sdks_types(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(**CHAT, extra_body=IGNORE_EOS)

    [choice] = answer.choices
    assert answer.usage is not None
    assert (choice.finish_reason, answer.usage.completion_tokens) == ("length", 12)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens_details is not None
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 12
    for entry in choice.logprobs.content:
        assert math.isfinite(entry.logprob)
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs == sorted(entry.top_logprobs, key=lambda top: -top.logprob)
        assert entry.bytes is not None
    data = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
    assert data.replace(b"<|end|>", b"").decode(errors="replace") == choice.message.content


def test_chat_streams_what_it_answers_plainly(sdk: openai.OpenAI) -> None:
    plain = sdk.chat.completions.create(**CHAT, n=2)
    chunks = list(
        sdk.chat.completions.create(**CHAT, n=2, stream=True, stream_options={"include_usage": True})
    )

    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens  # type: ignore[union-attr]
    for expected in plain.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == expected.index]
        assert "".join(part.delta.content or "" for part in parts) == expected.message.content
        assert parts[0].delta.role == "assistant"
        assert [part.finish_reason for part in parts if part.finish_reason] == [expected.finish_reason]
        entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content or []]
        assert entries == expected.logprobs.content  # type: ignore[union-attr]


def test_streaming_helper_of_the_sdk_puts_the_same_answer_together(sdk: openai.OpenAI) -> None:
    plain = sdk.chat.completions.create(**CHAT)

    assert plain.choices[0].message.content is not None
    stopped = CHAT | {
        "stop": plain.choices[0].message.content[4:7]
    }  # the helper takes no answer cut by length
    plain = sdk.chat.completions.create(**stopped)
    with sdk.chat.completions.stream(**stopped, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        joined = stream.get_final_completion()

    assert {"content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    assert joined.choices[0].message.content == plain.choices[0].message.content
    assert joined.choices[0].logprobs == plain.choices[0].logprobs
    assert joined.usage is not None


def test_async_client_asks_many_at_once(server: Server) -> None:
    async def main() -> list[ChatCompletion]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
            calls = [sdk.chat.completions.create(**CHAT | {"seed": seed}) for seed in (5, 6, 5)]
            answers = await asyncio.gather(*calls)
            text = ""
            async for chunk in await sdk.chat.completions.create(**CHAT, stream=True):
                text += chunk.choices[0].delta.content or ""
        assert text == answers[0].choices[0].message.content
        return answers

    first, other, again = asyncio.run(main())
    assert first.choices == again.choices
    assert first.choices != other.choices


def test_completions_have_their_lists(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model="tiny", prompt=["ab the", "x"], max_tokens=6, n=2, logprobs=2, seed=1, extra_body=IGNORE_EOS
    )

    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        lists = choice.logprobs
        assert lists is not None
        assert len(lists.tokens or []) == len(lists.token_logprobs or []) == 6
        assert len(lists.top_logprobs or []) == len(lists.text_offset or []) == 6
        assert all(len(tops) in (2, 3) for tops in lists.top_logprobs or [])
    assert answer.choices[0].text != answer.choices[1].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24


def test_echo_scores_a_text_as_it_was_scored_when_it_was_generated(sdk: openai.OpenAI) -> None:
    prompts = [[97, 98, 32], list("한국 the".encode())]
    ids = {"return_token_ids": True, **IGNORE_EOS}
    made = sdk.completions.create(
        model="tiny", prompt=prompts, max_tokens=8, logprobs=1, temperature=0, extra_body=ids
    )
    texts = [prompt + choice.token_ids for prompt, choice in zip(prompts, made.choices, strict=True)]  # type: ignore[attr-defined]

    scored = sdk.completions.create(
        model="tiny", prompt=texts, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1234
    )

    for prompt, text, before, after in zip(prompts, texts, made.choices, scored.choices, strict=True):
        assert before.logprobs is not None
        assert after.logprobs is not None
        assert after.logprobs.token_logprobs is not None
        assert len(after.logprobs.token_logprobs) == len(text) + 1
        assert after.logprobs.token_logprobs[0] is None
        made_here = slice(len(prompt), -1)
        assert after.logprobs.token_logprobs[made_here] == before.logprobs.token_logprobs
        assert (after.logprobs.top_logprobs or [])[made_here] == before.logprobs.top_logprobs
        assert (after.logprobs.tokens or [])[made_here] == before.logprobs.tokens
        assert after.text.startswith(bytes(prompt).decode() + before.text.rstrip("\ufffd"))


def test_refusals_name_their_field(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.chat.completions.create(**CHAT | {"top_logprobs": 21})
    assert refusal.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.chat.completions.create(**CHAT, n=17)
    assert (refusal.value.param, refusal.value.code) == ("n", "limit_exceeded")
