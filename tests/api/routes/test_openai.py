"""Plain answers of the OpenAI routes: shapes, defaults, prompts in all forms, refusals."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.core.errors import ClosedError, EngineDiedError, NotReadyError, OverloadedError
from tests.api.fake_service import FakeService
from tests.api.openai_calls import USER, refused
from tests.fakes import FakeGenerator


def test_chat_answer_has_openais_shape(client: TestClient, generator: FakeGenerator) -> None:
    generator.output = "Paris"
    generator.cached_tokens = 3

    response = client.post("/v1/chat/completions", json={"model": "fake", "messages": [USER]})

    answer = response.json()
    assert response.status_code == 200
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == "fake"
    assert answer["system_fingerprint"] == "fp_fake"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": len("<user>hi<assistant>"),
        "completion_tokens": 5,
        "total_tokens": len("<user>hi<assistant>") + 5,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_completion_answer_tells_the_stop_text_that_matched(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={"prompt": "one two three", "stop": " tw"}).json()

    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "one", "logprobs": None, "finish_reason": "stop", "stop_reason": " tw"}
    ]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["a", "bb", "ccc"], ["a", "bb", "ccc"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
def test_prompts_come_in_four_forms_and_choices_in_their_order(
    client: TestClient, prompt: Any, texts: list[str]
) -> None:
    answer = client.post("/v1/completions", json={"prompt": prompt}).json()

    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, texts))


@pytest.mark.parametrize(
    "prompt",
    [[], "", [""], [[]], [[97], []], ["a", 97], [1.5], [True], ["a", ""], {"a": 1}, None, [2**40], [[-1]]],
)
def test_prompts_that_are_none_are_refused_and_nothing_runs(
    client: TestClient, generator: FakeGenerator, prompt: Any
) -> None:
    assert refused(client, "/v1/completions", {"prompt": prompt})["param"] == "prompt"
    assert generator.num_aborted == 0
    assert client.post("/v1/completions", json={"prompt": "ok"}).status_code == 200


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "assistant", "content": "x"}], "messages"),
        ("hi", "messages"),
        ([{"content": "x"}], "messages.0.role"),
        ([USER, {"role": "king", "content": "x"}], "messages.1.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        ([{"role": "user", "content": 7}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([USER, {"role": "tool", "content": "x"}], "messages.1.tool_call_id"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [{}]}], "messages.1.tool_calls.0"),
    ],
)
def test_faults_of_messages_are_named(client: TestClient, messages: Any, param: str) -> None:
    assert refused(client, "/v1/chat/completions", {"messages": messages})["param"] == param


def test_parts_of_other_types_are_refused_and_never_fetched(client: TestClient) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}

    error = refused(client, "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]})

    assert error["param"] == "messages.0.content.0.type"
    assert error["code"] == "unsupported"
    assert "image_url" in error["message"]


def test_text_parts_are_joined_and_developer_is_system(client: TestClient, generator: FakeGenerator) -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ann"},
    ]

    client.post("/v1/chat/completions", json={"messages": messages})

    [submission] = generator.submissions
    assert bytes(submission["prompts"][0]) == b"<system>Be brief.<user>Hi there<assistant>"


def test_template_arguments_reach_the_template_but_not_its_own_names(
    client: TestClient, generator: FakeGenerator
) -> None:
    body = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}
    client.post("/v1/chat/completions", json=body | {"add_generation_prompt": False})

    assert bytes(generator.submissions[0]["prompts"][0]) == b"<user>hi<enable_thinking=False>"
    for name in ("messages", "self", "tools", "add_generation_prompt", "__class__", "a b"):
        error = refused(
            client, "/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {name: 1}}
        )
        assert error["param"] == "chat_template_kwargs"


def test_max_tokens_is_16_on_completions_and_the_room_left_on_chat(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.output = "x" * 100

    completion = client.post("/v1/completions", json={"prompt": "a"}).json()
    chat = client.post("/v1/chat/completions", json={"messages": [USER]}).json()

    assert completion["usage"]["completion_tokens"] == 16
    assert completion["choices"][0]["finish_reason"] == "length"
    assert chat["usage"]["completion_tokens"] == 100
    assert generator.submissions[1]["params"].max_tokens is None


@pytest.mark.parametrize(
    ("limits", "num_tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 9, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 1}, 1),
    ],
)
def test_max_completion_tokens_wins_over_max_tokens(
    client: TestClient, generator: FakeGenerator, limits: dict[str, int], num_tokens: int
) -> None:
    generator.output = "x" * 100

    answer = client.post("/v1/chat/completions", json={"messages": [USER], **limits}).json()

    assert answer["usage"]["completion_tokens"] == num_tokens
    assert answer["choices"][0]["finish_reason"] == "length"


def test_model_defaults_serve_fields_left_out_and_explicit_values_win(
    client: TestClient, generator: FakeGenerator, service: FakeService
) -> None:
    service.default_params = {"temperature": 0.2, "top_p": 0.9}

    client.post("/v1/completions", json={"prompt": "a"})
    client.post("/v1/completions", json={"prompt": "a", "temperature": 1.0, "top_p": 1.0})
    client.post("/v1/completions", json={"prompt": "a", "temperature": None, "stop": None})

    params = [submission["params"] for submission in generator.submissions]
    assert [(each.temperature, each.top_p) for each in params] == [(0.2, 0.9), (1.0, 1.0), (0.2, 0.9)]


def test_every_sampling_field_reaches_the_engine(client: TestClient, generator: FakeGenerator) -> None:
    fields = {
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 0,
        "include_stop_str_in_output": True,
        "min_tokens": 2,
        "ignore_eos": True,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.5,
        "skip_special_tokens": False,
    }
    lists = {"stop": ["x", "y"], "stop_token_ids": [5], "logit_bias": {"50": -100}}
    options = {"priority": 3, "cache_salt": "s", "truncate_prompt_tokens": 9, "add_special_tokens": False}

    response = client.post("/v1/completions", json={"prompt": "a", **fields, **lists, **options})

    [submission] = generator.submissions
    params = submission["params"]
    assert "x-legato-ignored" not in response.headers
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("x", "y"), (5,), {50: -100.0})
    assert {name: submission[name] for name in options} == options


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 1e6),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2**63),
        ("top_k", 1.0),
        ("max_tokens", 0),
        ("max_tokens", "x"),
        ("max_completion_tokens", -1),
        ("frequency_penalty", 2.1),
        ("seed", 2**64),
        ("stop", ""),
        ("stop", 7),
        ("stop", ["a", 7]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("n", 0),
        ("n", True),
        ("n", 1.0),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", -1),
        ("echo", 1),
        ("stream_options", {"include_usage": True}),
        ("ignore_eos", "yes"),
    ],
)
def test_values_out_of_range_are_refused_by_name(client: TestClient, field: str, value: Any) -> None:
    error = refused(client, "/v1/completions", {"prompt": "a", field: value})
    assert (error["param"], error["code"]) == (field, "invalid_value")


def test_number_beyond_every_float_is_refused(client: TestClient) -> None:
    response = client.post("/v1/completions", content=b'{"prompt": "a", "temperature": 1e999}')
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize("temperature", [0, 1e-30, 1e-5, 2])
def test_extreme_temperatures_in_range_are_served(client: TestClient, temperature: float) -> None:
    body = {"prompt": "a", "temperature": temperature, "top_k": 10**9}
    assert client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_over_the_context_is_400_before_any_event(client: TestClient, stream: bool) -> None:
    completion = refused(client, "/v1/completions", {"prompt": "a" * 1020, "max_tokens": 5, "stream": stream})
    chat = refused(
        client,
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a" * 1024}], "stream": stream},
    )

    assert (completion["code"], completion["param"]) == ("context_length_exceeded", "prompt")
    assert (chat["code"], chat["param"]) == ("context_length_exceeded", "messages")
    assert "1024" in completion["message"]
    assert "1025" in completion["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OverloadedError("the queue is full", retry_after_s=0.25), 429, "queue_full"),
        (NotReadyError("loading", retry_after_s=2.5), 503, "not_ready"),
        (ClosedError("the server is shutting down"), 503, "shutting_down"),
        (EngineDiedError("the engine ended"), 503, "engine_died"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_engine_are_statuses_also_for_streams(
    client: TestClient, generator: FakeGenerator, error: Exception, status: int, code: str, stream: bool
) -> None:
    generator.refusal = error

    response = client.post("/v1/completions", json={"prompt": "a", "stream": stream})

    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"] == str(error)


def test_retry_headers_come_in_both_spellings(client: TestClient, generator: FakeGenerator) -> None:
    generator.refusal = OverloadedError("the queue is full", retry_after_s=1.25)

    response = client.post("/v1/completions", json={"prompt": "a"})

    assert response.json()["error"]["type"] == "overloaded"
    assert response.headers["retry-after"] == "2"
    assert response.headers["retry-after-ms"] == "1250"


def test_failure_of_the_engine_midway_is_503_for_a_plain_answer(
    client: TestClient, generator: FakeGenerator
) -> None:
    generator.failure, generator.fail_after = EngineDiedError("the engine ended"), 2

    response = client.post("/v1/completions", json={"prompt": "abcdef"})

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_died"
    assert generator.num_aborted == 1
