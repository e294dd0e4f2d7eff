"""Several answers, logprobs, echoed prompts and token ids: the shapes of both routes, plain and streamed."""

import threading
from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.api.answers import openai
from legato.api.answers.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs_json
from legato.core.plan import TokenLogprobs
from tests.api.openai_calls import USER, refused
from tests.api.sse_events import events_of
from tests.fakes import ByteVocabulary, FakeGenerator

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CHAT_PROMPT = b"<user>hi<assistant>"


def plain(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    *events, done = events_of(client.post(path, json=body | {"stream": True}).text)
    assert done == "[DONE]"
    return events


@pytest.mark.parametrize("stream", [False, True])
def test_answer_j_to_prompt_i_has_index_i_times_n_plus_j_and_a_prompt_counts_once(
    client: TestClient, stream: bool
) -> None:
    body = {"prompt": ["a", "bb", "ccc"], "n": 2, "echo": True}
    texts: dict[int, str] = {}
    if stream:
        *parts, last = chunks(client, COMPLETIONS, body | {"stream_options": {"include_usage": True}})
        assert last["choices"] == []
        for part in parts:
            [choice] = part["choices"]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        usage = last["usage"]
    else:
        answer = plain(client, COMPLETIONS, body)
        texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
        usage = answer["usage"]

    assert texts == {0: "aa", 1: "aa", 2: "bbbb", 3: "bbbb", 4: "cccccc", 5: "cccccc"}
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 12, 18)


@pytest.mark.parametrize("stream", [False, True])
def test_many_logprobs_are_written_beside_the_event_loop_and_the_same(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    threads: list[str] = []

    class Lists(CompletionLogprobs):
        def prompt(self, *arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return super().prompt(*arguments)

    monkeypatch.setattr(openai, "CompletionLogprobs", Lists)
    body = {"prompt": "a" * 300, "echo": True, "logprobs": 2, "max_tokens": 1}
    first = chunks(client, COMPLETIONS, body)[0] if stream else plain(client, COMPLETIONS, body)
    monkeypatch.setattr(openai, "MANY_LOGPROBS", 1000)
    again = chunks(client, COMPLETIONS, body)[0] if stream else plain(client, COMPLETIONS, body)

    assert first["choices"] == again["choices"]
    assert len(first["choices"][0]["logprobs"]["tokens"]) == 301
    assert [name == "logprobs-writer" for name in threads] == [True, False]


def test_chat_gives_n_answers(client: TestClient, generator: FakeGenerator) -> None:
    answer = plain(client, CHAT, {"messages": [USER], "n": 3, "best_of": 3})

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == len(CHAT_PROMPT)
    assert generator.submissions[0]["n"] == 3


def test_best_of_other_than_n_is_refused(client: TestClient) -> None:
    error = refused(client, COMPLETIONS, {"prompt": "a", "n": 2, "best_of": 3})
    assert (error["param"], error["code"]) == ("best_of", "unsupported")


def test_logprobs_of_chat_have_an_entry_with_bytes_for_each_token(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "aé"

    answer = plain(client, CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": 1})

    def entry(token: str, byte: int) -> dict[str, Any]:
        entry = {"token": token, "logprob": -byte / 64, "bytes": [byte]}
        return entry | {"top_logprobs": [dict(entry)]}

    assert answer["choices"][0]["logprobs"] == {
        "content": [entry("a", 97), entry("\\xc3", 0xC3), entry("\\xa9", 0xA9)],
        "refusal": None,
    }


def test_logprobs_of_chat_without_a_number_have_no_tokens_beside(client: TestClient) -> None:
    for wish in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        answer = plain(client, CHAT, {"messages": [USER], **wish})
        assert {len(entry["top_logprobs"]) for entry in answer["choices"][0]["logprobs"]["content"]} == {0}
    for no_wish in ({"logprobs": False}, {"top_logprobs": 0}, {"logprobs": None}):
        assert plain(client, CHAT, {"messages": [USER], **no_wish})["choices"][0]["logprobs"] is None


def test_top_logprobs_of_chat_need_logprobs_and_are_twenty_at_most(client: TestClient) -> None:
    for wish in ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": False}):
        assert refused(client, CHAT, {"messages": [USER], **wish})["param"] == "top_logprobs"
    for number in (21, -1, 10**6, True):
        body = {"messages": [USER], "logprobs": True, "top_logprobs": number}
        assert refused(client, CHAT, body)["param"] == "top_logprobs"
    assert refused(client, CHAT, {"messages": [USER], "logprobs": 1})["param"] == "logprobs"
    assert refused(client, COMPLETIONS, {"prompt": "a", "logprobs": 1, "top_logprobs": 1})["param"] == (
        "top_logprobs"
    )


def test_logprobs_of_completions_are_lists_and_half_characters_are_written_as_bytes(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "aéb"

    answer = plain(client, COMPLETIONS, {"prompt": "x", "logprobs": 2})

    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-97 / 64, -0xC3 / 64, -0xA9 / 64, -98 / 64],
        "top_logprobs": [
            {"a": -97 / 64, "b": -98 / 64},
            {"bytes:\\xc3": -0xC3 / 64, "bytes:\\xc4": -0xC4 / 64},
            {"bytes:\\xa9": -0xA9 / 64, "bytes:\\xaa": -0xAA / 64},
            {"b": -98 / 64, "c": -99 / 64},
        ],
        "text_offset": [0, 1, 1, 2],
    }


def test_logprobs_zero_is_a_wish_and_has_the_token_alone(client: TestClient) -> None:
    logprobs = plain(client, COMPLETIONS, {"prompt": "ab", "logprobs": 0})["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -97 / 64}, {"b": -98 / 64}]
    assert plain(client, COMPLETIONS, {"prompt": "ab", "logprobs": False})["choices"][0]["logprobs"] is None


def test_chunk_carries_the_logprobs_and_ids_of_the_tokens_that_had_no_text_yet(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "é!STOP"
    body = {"logprobs": True, "return_token_ids": True, "stop": "STOP"}

    parts = chunks(client, CHAT, {"messages": [USER], **body})

    choices = [part["choices"][0] for part in parts]
    assert [choice["delta"].get("content") for choice in choices] == ["é", "!", None]
    assert [choice["token_ids"] for choice in choices] == [[0xC3, 0xA9], [ord("!")], list(b"STOP")]
    assert [len(choice["logprobs"]["content"]) for choice in choices] == [2, 1, 4]
    assert choices[-1]["stop_reason"] == "STOP"
    assert parts[0]["prompt_token_ids"] == list(CHAT_PROMPT)
    assert all("prompt_token_ids" not in part for part in parts[1:])


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_echo_with_logprobs_has_an_entry_for_each_token_of_prompt_and_answer(
    client: TestClient, max_tokens: int
) -> None:
    body = {"prompt": [[97, 98], [99, 100, 101]], "echo": True, "logprobs": 1, "max_tokens": max_tokens}

    answer = plain(client, COMPLETIONS, body)

    for choice, prompt in zip(answer["choices"], ["ab", "cde"], strict=True):
        text = prompt + prompt[:max_tokens]
        assert choice["text"] == text
        assert choice["logprobs"]["tokens"] == list(text)
        assert choice["logprobs"]["token_logprobs"] == [None, *(-ord(char) / 64 for char in text[1:])]
        assert choice["logprobs"]["top_logprobs"] == [None, *({c: -ord(c) / 64} for c in text[1:])]
        assert choice["logprobs"]["text_offset"] == list(range(len(text)))
    assert answer["usage"]["completion_tokens"] == 2 * max_tokens


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_echo_of_a_stream_comes_once_and_first(
    client: TestClient, generator: FakeGenerator, max_tokens: int, logprobs: int | None
) -> None:
    generator.output = "é12"
    body = {"prompt": "abc", "echo": True, "max_tokens": max_tokens, "logprobs": logprobs}

    choices = [part["choices"][0] for part in chunks(client, COMPLETIONS, body)]
    [whole] = plain(client, COMPLETIONS, body)["choices"]

    assert choices[0]["text"] == "abc"
    assert "".join(choice["text"] for choice in choices) == whole["text"] == "abc" + "é12" * bool(max_tokens)
    if logprobs is not None:
        for name, values in whole["logprobs"].items():
            assert [value for choice in choices for value in choice["logprobs"][name]] == values
    assert choices[-1]["finish_reason"] == whole["finish_reason"] is not None


def test_no_tokens_are_served_only_where_the_prompt_is_told(client: TestClient) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert refused(client, COMPLETIONS, {"prompt": "a", name: 0})["param"] == name
        assert refused(client, CHAT, {"messages": [USER], name: 0})["param"] == name
        assert refused(client, COMPLETIONS, {"prompt": "a", "echo": True, name: -1})["param"] == name
        body = {"prompt": "a", "prompt_logprobs": 0, name: 0}
        assert plain(client, COMPLETIONS, body)["usage"]["completion_tokens"] == 0


def test_echo_is_of_completions_alone(client: TestClient) -> None:
    error = refused(client, CHAT, {"messages": [USER], "echo": True})
    assert (error["param"], error["code"]) == ("echo", "unsupported")


def test_prompt_logprobs_stand_where_vllm_puts_them(client: TestClient) -> None:
    at_b = {
        "98": {"logprob": -98 / 64, "rank": 1, "decoded_token": "b"},
        "99": {"logprob": -99 / 64, "rank": 2, "decoded_token": "c"},
    }

    completion = plain(client, COMPLETIONS, {"prompt": ["ab", "b"], "prompt_logprobs": 2})
    chat = plain(client, CHAT, {"messages": [USER], "prompt_logprobs": 1})

    assert [choice["prompt_logprobs"] for choice in completion["choices"]] == [[None, at_b], [None]]
    assert len(chat["prompt_logprobs"]) == len(CHAT_PROMPT)
    assert chat["prompt_logprobs"][0] is None
    assert set(chat["prompt_logprobs"][1]) == {str(CHAT_PROMPT[1])}


def test_own_token_stands_first_in_prompt_logprobs_and_has_no_rank_below_the_most_probable() -> None:
    names = TokenNames(ByteVocabulary())
    place = TokenLogprobs(-9.0, (101, 102), (-1.0, float("-inf")))

    [first, told] = prompt_logprobs_json([97, 98], [place], names, 2)

    assert first is None
    assert [(key, value["logprob"], value["rank"]) for key, value in told.items()] == [
        ("98", -9.0, None),
        ("101", -1.0, 1),
        ("102", -9999.0, 2),
    ]


def test_echo_and_prompt_logprobs_each_have_their_number_of_tokens(client: TestClient) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 1, "prompt_logprobs": 3, "max_tokens": 0}

    [choice] = plain(client, COMPLETIONS, body)["choices"]

    assert len(choice["logprobs"]["top_logprobs"][1]) == 1
    assert len(choice["prompt_logprobs"][1]) == 3


def test_prompt_logprobs_are_refused_in_a_stream_and_above_twenty(client: TestClient) -> None:
    for path, prompt in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [USER]})):
        for wish in ({"prompt_logprobs": 0, "stream": True}, {"prompt_logprobs": 21}):
            assert refused(client, path, prompt | wish)["param"] == "prompt_logprobs"


def test_token_ids_of_prompt_and_answer_stand_where_vllm_puts_them(client: TestClient) -> None:
    completion = plain(client, COMPLETIONS, {"prompt": ["ab", "c"], "return_token_ids": True})
    chat = plain(client, CHAT, {"messages": [USER], "return_token_ids": True, "max_tokens": 1})

    found = [(choice["prompt_token_ids"], choice["token_ids"]) for choice in completion["choices"]]
    assert found == [([97, 98], [97, 98]), ([99], [99])]
    assert chat["prompt_token_ids"] == list(CHAT_PROMPT)
    assert chat["choices"][0]["token_ids"] == [ord("<")]


def test_tokens_may_be_named_by_their_ids(client: TestClient) -> None:
    wish = {"return_tokens_as_token_ids": True, "max_tokens": 1}
    completion = plain(client, COMPLETIONS, {"prompt": "a", "logprobs": 1, **wish})
    chat = plain(client, CHAT, {"messages": [USER], "logprobs": True, **wish})

    assert completion["choices"][0]["logprobs"]["tokens"] == ["token_id:97"]
    assert completion["choices"][0]["logprobs"]["top_logprobs"] == [{"token_id:97": -97 / 64}]
    [entry] = chat["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:60", [60])


def test_final_message_is_continued(client: TestClient, generator: FakeGenerator) -> None:
    body = {"messages": [USER, {"role": "assistant", "content": "Well"}], "continue_final_message": True}

    plain(client, CHAT, body)
    plain(client, CHAT, body | {"add_generation_prompt": False, "add_special_tokens": True})

    prompts = [bytes(submission["prompts"][0]) for submission in generator.submissions]
    assert prompts == [b"<user>hi<assistant>Well+", b"^<user>hi<assistant>Well+"]
    error = refused(client, CHAT, body | {"add_generation_prompt": True})
    assert error["param"] == "continue_final_message"
