"""Bodies of every route, mutated: served or refused, never a 5xx, without effect on a stream beside them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.api.contract.live import Live, serve
from tests.fuzz.examples import counts, mutated, run_examples

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SAMPLING: dict[str, Any] = {
    "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "n": 2,
    "stop": ["x", "\n"], "stop_token_ids": [3], "logit_bias": {"5": 1.5}, "presence_penalty": 0.5,
    "frequency_penalty": 0.5, "repetition_penalty": 1.1, "min_tokens": 1, "ignore_eos": True, "priority": 1,
    "cache_salt": "s", "stream_options": {"include_usage": True}, "user": "u", "skip_special_tokens": False,
}  # fmt: skip
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
    {"role": "user", "content": "And now?"},
]  # fmt: skip
PLAIN = {"max_tokens": 2}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **SAMPLING},
        {"messages": MESSAGES[-1:], "tools": [TOOL], "tool_choice": "auto", "stream": True, **PLAIN},
        {"messages": MESSAGES[-1:], "chat_template_kwargs": {"a": 1}, "add_generation_prompt": True, **PLAIN},
        {
            "messages": MESSAGES[-1:],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            **PLAIN,
        },
    ],
    "/v1/completions": [
        {"prompt": ["a", "b"], "echo": True, "logprobs": 2, **SAMPLING},
        {"prompt": [[5, 6], [7]], "stream": True, "prompt_logprobs": 1, "return_token_ids": True, **PLAIN},
        {"prompt": "a", "guided_json": SCHEMA, "suffix": None, "best_of": 1, **PLAIN},
        {"prompt": "a", "structured_outputs": {"choice": ["x", "y"]}, "truncate_prompt_tokens": 8, **PLAIN},
    ],
    "/v1/responses": [
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
            "instructions": "i",
            "max_output_tokens": 2,
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
            "text": {"format": {"type": "text"}},
            "stream": True,
        },
    ],
    "/v1/messages": [
        {
            "model": "tiny",
            "max_tokens": 2,
            "system": [{"type": "text", "text": "s"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "stop_sequences": ["x"],
            "stream": True,
        },
    ],
    "/v1/messages/count_tokens": [{"model": "tiny", "messages": [{"role": "user", "content": "a"}]}],
    "/tokenize": [{"prompt": "a", "add_special_tokens": True}, {"messages": MESSAGES[-1:]}],
    "/detokenize": [{"tokens": [97, 98]}],
    "/basic_generate": [{"prompt": "a", **SAMPLING}],
    "/generate": [{"prompts": ["a", "b"], **PLAIN}],
    "/generate_stream": [{"prompt": "a", **PLAIN}],
    "/abort_requests": [{"request_ids": ["x"]}],
    "/abort_request": [{"rid": "x"}],
    "/v1/requests/x/abort": [{}],
}
EXAMPLES = [(path, body) for path, bodies in BODIES.items() for body in bodies]
JSON_TYPE = {"content-type": "application/json"}
RAW = (
    *("NaN", "Infinity", "1e999", "-0", "1.0E+2", "9" * 5000, "tru", "null null", "'a'", "//"),
    *("[" * 2000, "[" * 2000 + "]" * 2000, '{"a":' * 900, '{"a":1,"a":2}'),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x"', "\ufeff"),
    *("[0" + ",0" * 10**6 + "]", '["a"' + ',"a"' * 10**5 + "]", "[" + "{}," * 80_000 + "{}]"),
    '"' + "a" * 10**6 + '"',
)  # fmt: skip


@pytest.fixture(scope="module")
def live(tiny_model: Path) -> Iterator[Live]:
    with serve(tiny_model) as opened:
        yield opened


def check(live: Live, path: str, data: bytes) -> None:
    response = live.http.post(path, content=data, headers=JSON_TYPE)
    assert response.status_code < 500, response.text
    if response.headers["content-type"].startswith("application/json"):
        assert isinstance(response.json(), dict)
        assert len(response.content) < 2 * 2**20
    else:
        assert response.headers["content-type"].startswith("text/event-stream")


@counts(4, 400)
def test_mutated_bodies_of_every_route(live: Live, num_examples: int) -> None:
    def post(path: str, body: Any) -> None:
        check(live, path, json.dumps(body).encode(errors="surrogatepass"))

    with live.beside_a_stream():
        for path, example in EXAMPLES:
            run_examples(
                num_examples, lambda body, path=path: post(path, body), mutated(example, also=("zeta",))
            )


@st.composite
def spliced(draw: st.DrawFn, text: str) -> bytes:
    """JSON with something that is none, or hardly any, in the place of a value or anywhere."""
    raw = draw(st.sampled_from(RAW))
    places = [place for place, char in enumerate(text) if char in ":[,"]
    place = draw(st.sampled_from(places)) + 1 if places else 0
    end = draw(st.sampled_from((place, place, len(text), min(len(text), place + 3))))
    data = (text[:place] + raw + text[end:]).encode()
    if draw(st.integers(0, 3)) == 0:
        cut = draw(st.integers(0, len(data)))
        data = data[:cut] + draw(st.binary(min_size=1, max_size=4)) + data[cut:]
    return data


@counts(4, 300)
def test_texts_that_are_hardly_json(live: Live, num_examples: int) -> None:
    with live.beside_a_stream():
        for path, example in EXAMPLES:
            run_examples(
                num_examples, lambda data, path=path: check(live, path, data), spliced(json.dumps(example))
            )


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw[:12])
def test_each_raw_value_as_a_prompt(live: Live, raw: str) -> None:
    check(live, "/v1/completions", f'{{"max_tokens": 1, "prompt": {raw}}}'.encode())


def test_nothing_is_left_running_after_all_this(live: Live) -> None:
    stats = live.http.get("/stats").json()
    assert (stats["running"], stats["waiting"], stats["requests"], stats["pages_held"]) == (0, 0, [], 0)
