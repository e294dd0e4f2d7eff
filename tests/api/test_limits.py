"""Each row of the table of limits below, at and above its number."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from legato.api.bodies.openai import ChatBody, CompletionBody, DetokenizeBody
from legato.api.limits import LIMITS
from legato.api.routes.lesson import PromptsBody


def constrained(field: str, value: Callable[[int], Any], count: int) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 1, field: value(count)}


def nested_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def _prompts_times_n(count: int) -> dict[str, Any]:
    n = max(divisor for divisor in range(1, 17) if count % divisor == 0)
    return {"prompt": ["a"] * (count // n), "n": n}


# row -> path, a body that holds `count` of what the row counts, and the param of the refusal
BODIES: dict[str, tuple[str, Callable[[int], dict[str, Any]], str | None]] = {
    "messages": (
        "/v1/chat/completions",
        lambda count: {"messages": [{"role": "user", "content": ""}] * count, "max_tokens": 1},
        "messages",
    ),
    "prompts": ("/v1/completions", lambda count: {"prompt": ["a"] * count}, "prompt"),
    "n": ("/v1/completions", lambda count: {"prompt": "a", "n": count}, "n"),
    "answers": ("/v1/completions", lambda count: _prompts_times_n(count), "n"),
    "logprobs": ("/v1/completions", lambda count: {"prompt": "a", "logprobs": count}, "logprobs"),
    "stop": ("/v1/completions", lambda count: {"prompt": "a", "stop": ["z"] * count}, "stop"),
    "stop_chars": ("/v1/completions", lambda count: {"prompt": "a", "stop": ["a", "z" * count][1:]}, "stop"),
    "stop_token_ids": (
        "/v1/completions",
        lambda count: {"prompt": "a", "stop_token_ids": [1] * count},
        "stop_token_ids",
    ),
    "logit_bias": (
        "/v1/completions",
        lambda count: {"prompt": "a", "logit_bias": {str(token_id): 1 for token_id in range(count)}},
        "logit_bias",
    ),
    "aborts": ("/abort_requests", lambda count: {"request_ids": ["x"] * count}, "request_ids"),
    "fields": (
        "/v1/completions",
        lambda count: {"prompt": "a"} | dict.fromkeys(map(str, range(count - 1))),
        None,
    ),
    "cache_salt": ("/v1/completions", lambda count: {"prompt": "a", "cache_salt": "s" * count}, "cache_salt"),
    "tools": (
        "/v1/chat/completions",
        lambda count: {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": f"f{number}"}} for number in range(count)],
        },
        "tools",
    ),
    "template_kwargs": (
        "/v1/chat/completions",
        lambda count: {
            "messages": [{"role": "user", "content": "a"}],
            "chat_template_kwargs": {f"k{number}": 1 for number in range(count)},
        },
        "chat_template_kwargs",
    ),
}
BODIES |= {  # of fields that constrain an answer
    name: ("/v1/completions", partial(constrained, field, value), field)
    for name, field, value in (
        ("schema", "guided_json", lambda count: {"title": "t" * (count - len('{"title": ""}'))}),
        ("schema_depth", "guided_json", nested_schema),
        ("regex", "guided_regex", lambda count: "a" * count),
        ("choices", "guided_choice", lambda count: ["a"] * count),
        ("grammar", "guided_grammar", lambda count: 'start: "' + "a" * (count - len('start: ""')) + '"'),
    )
}
TESTED_IN_TRANSPORT = {"body", "body_time", "header", "header_lines", "json_values", "request_id"}


def test_every_row_is_tested() -> None:
    assert set(LIMITS) == set(BODIES) | TESTED_IN_TRANSPORT


@pytest.mark.parametrize("name", BODIES)
def test_below_and_at_the_limit_is_served_and_above_is_refused(client: TestClient, name: str) -> None:
    path, body, param = BODIES[name]
    maximum = LIMITS[name].maximum
    client.app.state.models.find(None)[1].generator.max_model_len = 10_000  # type: ignore[attr-defined]

    assert client.post(path, json=body(maximum - 1)).status_code == 200
    assert client.post(path, json=body(maximum)).status_code == 200
    refused = client.post(path, json=body(maximum + 1))

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert refused.json()["error"]["code"] == "limit_exceeded"
    assert str(maximum) in refused.json()["error"]["message"]


@pytest.mark.parametrize(("num_prompts", "status"), [(255, 200), (256, 200), (257, 422)])
def test_batches_of_the_lesson_have_the_same_limit(client: TestClient, num_prompts: int, status: int) -> None:
    body = {"prompts": ["a"] * num_prompts, "max_tokens": 1}
    assert client.post("/generate", json=body).status_code == status


@pytest.mark.parametrize("values", ["[]," * 2**17, "1," * 2**18, '{"a":1},' * 2**17])
def test_body_of_countless_values_is_refused_before_it_is_parsed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, values: str
) -> None:
    monkeypatch.setattr("legato.api.transport.json_body.parse_strictly", None)
    response = client.post("/v1/completions", content=f'{{"prompt": "a", "x": [{values}0]}}')
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "limit_exceeded"
    assert "brackets and commas" in response.json()["error"]["message"]


def faults(kind: type[BaseModel], body: dict[str, Any]) -> list[Any]:
    with pytest.raises(ValidationError) as refusal:
        kind.model_validate(body)
    return refusal.value.errors()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PromptsBody, {"prompts": [1] * 200}),
        (PromptsBody, {"prompts": [1] * 10_000}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": [""] * 200}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": [""] * 10_000}),
        (CompletionBody, {"prompt": "a", "stop": [1] * 10_000}),
        (CompletionBody, {"prompt": "a", "logit_bias": {str(i): "" for i in range(10_000)}}),
        (CompletionBody, {"prompt": [{}] * 10_000}),
        (CompletionBody, {"prompt": [1] + [""] * 10_000}),
        (ChatBody, {"messages": [{}] * 10_000}),
        (DetokenizeBody, {"tokens": [""] * 10_000}),
    ],
)
def test_list_that_does_not_fit_is_one_fault(kind: type[BaseModel], body: dict[str, Any]) -> None:
    assert len(faults(kind, body)) == 1


def test_the_lesson_tells_few_faults_and_repeats_nothing_long(client: TestClient) -> None:
    body = {"prompts": {"a": 1}, "logit_bias": {"9" * 1000 + str(i): "x" * 1000 for i in range(20)}}
    response = client.post("/generate", json=body)
    assert response.status_code == 422
    assert len(response.json()["detail"]) == 8
    assert len(response.content) < 4000
