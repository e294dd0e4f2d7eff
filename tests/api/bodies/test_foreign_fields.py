"""Every field of the official SDKs is honoured, refused, adjusted, a note or ignored: one of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from anthropic.types import message_create_params
from fastapi.testclient import TestClient
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from legato.api.bodies.anthropic.body import MessagesBody
from legato.api.bodies.foreign_fields import ADJUSTED, NOTES, UNSUPPORTED, is_harmless
from legato.api.bodies.generation import Body
from legato.api.bodies.openai import ChatBody, CompletionBody
from legato.api.bodies.responses.body import ResponsesBody
from tests.api.openai_calls import USER, refused

# What the SDKs may send and legato ignores, telling so in the header.
IGNORED: Mapping[type[Body], set[str]] = {
    ChatBody: {"reasoning_effort", "verbosity"},
    CompletionBody: set(),
    ResponsesBody: {
        "access_programs",
        "background_options",
        "context_management",
        "image",
        "max_tool_calls",
        "reasoning",
    },
    MessagesBody: {"diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id"},
}
PARAMS: Mapping[type[Body], tuple[type, type]] = {
    ChatBody: (
        chat_create_params.CompletionCreateParamsNonStreaming,
        chat_create_params.CompletionCreateParamsStreaming,
    ),
    CompletionBody: (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
    ResponsesBody: (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ),
    MessagesBody: (
        message_create_params.MessageCreateParamsNonStreaming,
        message_create_params.MessageCreateParamsStreaming,
    ),
}


@pytest.mark.parametrize("body", PARAMS)
def test_every_field_of_the_sdk_has_its_place(body: type[Body]) -> None:
    fields = {name for params in PARAMS[body] for name in params.__annotations__}  # its bases' too
    foreign = fields - body.model_fields.keys()
    assert len(fields) > 15
    assert foreign - UNSUPPORTED.keys() - ADJUSTED.keys() - NOTES <= IGNORED[body]


def test_a_field_stands_in_one_table() -> None:
    names = [*UNSUPPORTED, *ADJUSTED, *NOTES]
    assert len(names) == len(set(names))


def asking(harmless: tuple[Any, ...]) -> Any:
    """A value that a table's row does not pass."""
    return next(value for value in (True, 7, "x") if not is_harmless(value, harmless))


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_would_change_the_answer_is_refused_and_what_asks_for_nothing_passes(
    client: TestClient, name: str
) -> None:
    honoured = CompletionBody.model_fields.keys()
    for value in () if name in honoured else (None, *UNSUPPORTED[name]):
        response = client.post("/v1/completions", json={"prompt": "a", name: value})
        assert response.status_code == 200, response.text
        assert "x-legato-ignored" not in response.headers
    if name not in honoured:
        body = {"prompt": "a", name: asking(UNSUPPORTED[name])}
        error = refused(client, "/v1/completions", body)
        assert (error["param"], error["code"]) == (name, "unsupported")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bad_words", ["a"], "bad_words is not supported here with this value; leave it out"),
        ("input_ids", [1], "input_ids is not supported here; leave it out"),
        ("grammar", "root ::= x", 'grammar is not read here; give structured_outputs: {"grammar": ...}'),
    ],
)
def test_refusals_say_what_to_do(client: TestClient, name: str, value: Any, message: str) -> None:
    assert refused(client, "/v1/completions", {"prompt": "a", name: value})["message"] == message


def test_what_the_page_of_llama_cpp_sends_is_served(client: TestClient) -> None:
    off: Mapping[str, Any] = {
        "dynatemp_range": 0,
        "dynatemp_exponent": 1,
        "typical_p": 1,
        "xtc_probability": 0,
        "xtc_threshold": 0.1,
        "repeat_last_n": 64,
        "repeat_penalty": 1,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
    }
    response = client.post(
        "/v1/chat/completions", json={"messages": [USER], **off, "top_k": 40, "min_p": 0.05}
    )
    assert response.status_code == 200
    assert "x-legato-ignored" not in response.headers
