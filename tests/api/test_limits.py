"""Each row of the table of limits below, at and above its number."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from pydantic import BaseModel, ValidationError

from legato.api.bodies.openai import ChatBody, CompletionBody, DetokenizeBody
from legato.api.limits import LIMITS
from legato.api.routes.lesson import PromptsBody
from legato.api.transport.size_limit import SizeLimit
from legato.core.errors import RequestError
from legato.frontend.async_llm import CHARS_PER_TOKEN
from legato.tokenization.chat_template import ChatTemplate
from legato.tokenization.grammar_helper import MAX_CPU_S
from legato.tokenization.template_sandbox import MAX_SECONDS, MAX_TEXT_LEN
from tests.virtual_time import VirtualTimeLoop


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


def padded(client: TestClient, num_bytes: int) -> Response:
    body = json.dumps({"prompt": "a", "user": ""})
    return client.post("/v1/completions", content=body[:-2] + "x" * (num_bytes - len(body)) + body[-2:])


def of_values(client: TestClient, count: int) -> Response:
    """Around the list's commas stand a brace, a comma and a bracket."""
    body = '{"prompt": "a", "x": [' + "1," * (count - 3) + "1]}"
    return client.post("/v1/completions", content=body)


def with_header_bytes(client: TestClient, num_bytes: int) -> Response:
    raw = client.build_request("GET", "/v1/models", headers={"x-big": ""}).headers.raw
    own = sum(len(name) + len(value) for name, value in raw)
    return client.get("/v1/models", headers={"x-big": "x" * (num_bytes - own)})


def with_header_lines(client: TestClient, num_lines: int) -> Response:
    own = len(client.build_request("GET", "/v1/models").headers.raw)
    return client.get("/v1/models", headers=[(f"x-{number}", "1") for number in range(num_lines - own)])


def sent_within(client: TestClient, seconds: int) -> Response:
    """A body that comes half a second before so long, on a clock that is not the wall's."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(seconds - 0.5)
        return {"type": "http.request", "body": b'{"prompt": "a"}', "more_body": False}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(SizeLimit(app)(scope, receive, send))
    return Response(sent[0]["status"])


def with_id(client: TestClient, length: int) -> Response:
    """An id that is too long is replaced, for which this has no status."""
    response = client.get("/v1/models", headers={"x-request-id": "i" * length})
    return response if response.headers["x-request-id"] == "i" * length else Response(REPLACED)


REPLACED = 299
# row -> a call with `count` of what the row counts, and the status of one that is over the limit
CALLS: dict[str, tuple[Callable[[TestClient, int], Response], int]] = {
    "body": (padded, 413),
    "json_values": (of_values, 400),
    "body_time": (sent_within, 408),
    "header": (with_header_bytes, 431),
    "header_lines": (with_header_lines, 431),
    "request_id": (with_id, REPLACED),
}


def test_every_row_is_tested() -> None:
    assert set(LIMITS) == set(BODIES) | set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_whole_requests_below_at_and_above_their_limits(client: TestClient, name: str) -> None:
    send, refusal = CALLS[name]
    maximum = LIMITS[name].maximum
    statuses = [send(client, maximum + excess).status_code for excess in (-1, 0, 1)]
    assert statuses == [200, 200, refusal]


# What is promised in so many words: a change here is a change for those who rely on it.
PROMISED = {
    "body": 8 * 2**20, "messages": 256, "prompts": 256, "n": 16, "stop": 16, "stop_chars": 256,
    "logit_bias": 1024, "schema": 64 * 2**10, "schema_depth": 64, "regex": 4 * 2**10, "tools": 128,
    "logprobs": 20, "header": 64 * 2**10, "header_lines": 100, "body_time": 15,
}  # fmt: skip


def test_limits_are_those_that_are_promised() -> None:
    assert {name: LIMITS[name].maximum for name in PROMISED} == PROMISED
    assert (MAX_SECONDS, MAX_TEXT_LEN) == (1.0, 4 * 2**20)  # of rendering a template
    assert CHARS_PER_TOKEN == 8
    assert MAX_CPU_S == 2  # of building a grammar


@pytest.mark.parametrize(("excess", "is_served"), [(-1, True), (0, True), (1, False)])
def test_text_of_a_template_has_its_limit(excess: int, is_served: bool) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    render = partial(template.render, [{"role": "user", "content": "x" * (MAX_TEXT_LEN + excess)}])
    if is_served:
        assert len(render()) == MAX_TEXT_LEN + excess
    else:
        with pytest.raises(RequestError, match=f"more than {MAX_TEXT_LEN:,} characters"):
            render()


@pytest.mark.parametrize(("seconds", "is_served"), [(0.9, True), (1.0, True), (1.1, False)])
def test_time_of_a_template_has_its_limit(seconds: float, is_served: bool) -> None:
    looks = chain([0.0], repeat(seconds))
    template = ChatTemplate("{{ messages | length }}", clock=lambda: next(looks))
    render = partial(template.render, [{"role": "user", "content": "x"}])
    if is_served:
        assert render() == "1"
    else:
        with pytest.raises(RequestError, match="more than 1 s"):
            render()


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
