"""Bodies as clients send them, sane and not: the right field is named, and the server lives on."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.contract.live import ROUTES, Live, serve
from tests.api.openai_calls import USER
from tests.tiny_model import MAX_MODEL_LEN, write_tiny_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
both_routes = pytest.mark.parametrize("path", ROUTES)
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("prompt", [[[-1]], [10**9], [1.5], [True], [[97], [-1]], [2**40]])
def test_ids_outside_the_vocabulary_are_refused_and_leave_neighbours_alone(live: Live, prompt: Any) -> None:
    alone = live.text(prompt="neighbour", max_tokens=60, **GREEDY)
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(live.text, prompt="neighbour", max_tokens=60, **GREEDY)
        error = live.error(COMPLETIONS, prompt=prompt)
    assert error["param"] == "prompt"
    assert neighbour.result() == alone


def test_refusal_of_an_id_tells_the_size_of_the_vocabulary(live: Live) -> None:
    assert "vocabulary of 274" in live.error(COMPLETIONS, prompt=[1000])["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [""]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", [97]]}, "prompt"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages.0.content.0.type"),
    ],
)
def test_nothing_to_answer_is_a_fault_and_the_server_lives(
    live: Live, path: str, fields: dict[str, Any], param: str
) -> None:
    assert live.error(path, **fields)["param"] == param
    assert live.plain(COMPLETIONS, max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"123", b"", b'{"prompt": NaN}', b"\xff"])
@both_routes
def test_a_body_that_is_no_json_object_is_400_in_openais_shape(live: Live, path: str, body: bytes) -> None:
    response = live.http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_good_body_needs_no_content_type(live: Live) -> None:
    assert live.http.post(COMPLETIONS, content=b'{"prompt": "a", "max_tokens": 1}').status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", COMPLETIONS, {"prompt": "a", "max_tokens": "x"}, 400),
        ("POST", CHAT, {}, 400),
        ("POST", "/v1/nothing", {}, 404),
        ("GET", CHAT, None, 405),
        ("GET", "/v1/models/..%2f..%2fetc", None, 404),
    ],
)
def test_every_error_has_openais_shape(
    live: Live, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    response = live.http.request(method, path, json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@both_routes
@pytest.mark.parametrize(
    ("limits", "num_tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 1}, 1),
    ],
)
def test_limits_on_tokens_hold_under_either_name(
    live: Live, path: str, limits: dict[str, int], num_tokens: int
) -> None:
    answer = live.plain(path, **GREEDY, **limits)
    assert answer["usage"]["completion_tokens"] == num_tokens
    assert answer["choices"][0]["finish_reason"] == "length"


@both_routes
def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(live: Live, path: str) -> None:
    fields = {"temperature": 1, "max_tokens": 30, "ignore_eos": True}
    alone = [live.text(path, seed=seed, **fields) for seed in (0, 7)]
    with ThreadPoolExecutor(10) as pool:
        others = [pool.submit(live.text, path, **fields) for _ in range(8)]
        crowded = [pool.submit(live.text, path, seed=seed, **fields) for seed in (0, 7)]
    assert [each.result() for each in crowded] == alone
    assert alone[0] != alone[1]
    assert len({each.result() for each in others}) > 1


def test_prompt_over_the_context_is_refused_with_the_numbers_and_never_cut(live: Live) -> None:
    for prompt_len, max_tokens in ((MAX_MODEL_LEN + 1, 1), (MAX_MODEL_LEN - 10, 100), (MAX_MODEL_LEN, 1)):
        error = live.error(COMPLETIONS, prompt=[97] * prompt_len, max_tokens=max_tokens)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(MAX_MODEL_LEN) in error["message"]
        assert str(prompt_len) in error["message"]
    answer = live.plain(COMPLETIONS, prompt=[97] * (MAX_MODEL_LEN - 1), max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == MAX_MODEL_LEN - 1
    long = [{"role": "user", "content": "a" * MAX_MODEL_LEN}]
    assert live.error(CHAT, messages=long)["code"] == "context_length_exceeded"


def test_text_parts_are_the_text_that_they_join_to(live: Live) -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    in_parts, joined = (
        live.plain(CHAT, messages=[{"role": "user", "content": content}], max_tokens=12, **GREEDY)
        for content in (parts, "Hi there")
    )
    assert in_parts["choices"] == joined["choices"]
    assert in_parts["usage"]["prompt_tokens"] == joined["usage"]["prompt_tokens"]


def test_the_templates_own_reason_is_told(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}"
        "{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    system, answer = {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}
    with serve(write_tiny_model(tmp_path / "model", chat_template=template)) as live:
        for messages, reason in (
            ([system, USER], "no system role"),
            ([USER, USER], "roles must alternate"),
            ([answer, USER], "roles must alternate"),
        ):
            error = live.error(CHAT, messages=messages)
            assert error["param"] == "messages"
            assert reason in error["message"]
        assert live.plain(CHAT, messages=[USER, answer, USER], max_tokens=1)["usage"]["prompt_tokens"] == 5


def test_prompts_of_a_list_are_answered_as_alone_in_their_order(live: Live) -> None:
    prompts = ["a", "bb", "a much longer prompt, of more than a page of tokens", "ccc"]
    together = live.plain(COMPLETIONS, prompt=prompts, max_tokens=8, **GREEDY)
    alone = [live.plain(COMPLETIONS, prompt=prompt, max_tokens=8, **GREEDY) for prompt in prompts]
    ids = [list(prompt.encode()) for prompt in prompts]
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in together["choices"]] == [
        each["choices"][0]["text"] for each in alone
    ]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][name] == sum(each["usage"][name] for each in alone)
    assert live.plain(COMPLETIONS, prompt=ids, max_tokens=8, **GREEDY)["choices"] == together["choices"]


def test_presence_and_frequency_count_generated_tokens_alone(live: Live) -> None:
    prompt = "the the the the the the the the"
    free = live.text(prompt=prompt, max_tokens=30, **GREEDY)
    one_token = live.text(prompt=prompt, max_tokens=1, **GREEDY)
    for name in ("frequency_penalty", "presence_penalty"):
        assert live.text(prompt=prompt, max_tokens=1, **GREEDY, **{name: 2}) == one_token
        penalised = live.text(prompt=prompt, max_tokens=30, **GREEDY, **{name: 2})
        crowd = live.plain(COMPLETIONS, prompt=["x" * 200, prompt], max_tokens=30, **GREEDY, **{name: 2})
        assert crowd["choices"][1]["text"] == penalised
    strong = live.text(prompt=prompt, max_tokens=30, **GREEDY, frequency_penalty=2, presence_penalty=2)
    assert strong != free


@pytest.mark.parametrize("temperature", [0, 1e-30, 1e-5])
def test_tiny_temperatures_are_greedy(live: Live, temperature: float) -> None:
    greedy = live.text(temperature=0, max_tokens=12)
    assert live.text(temperature=temperature, max_tokens=12, top_k=0, seed=1) == greedy


@pytest.mark.parametrize("top_k", [-1, 0, 274, 10**9])
def test_top_k_of_the_vocabulary_and_above_is_off(live: Live, top_k: int) -> None:
    sampled = {"temperature": 1, "seed": 3, "max_tokens": 12}
    assert live.text(top_k=top_k, **sampled) == live.text(**sampled)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 1e6),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", -1),
        ("top_p", 1.5),
        ("top_k", -2),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
    ],
)
def test_extreme_values_are_refused_by_name_and_the_next_request_is_served(
    live: Live, field: str, value: Any
) -> None:
    assert live.error(COMPLETIONS, **{field: value})["param"] == field
    assert live.text(max_tokens=2, temperature=2, ignore_eos=True) is not None
