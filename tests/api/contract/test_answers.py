"""Several answers, logprobs, echoed prompts and characters, with a real model behind them."""

import math
from typing import Any

import pytest

from tests.api.contract.live import ASCII, ROUTES, Live, text_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
both_routes = pytest.mark.parametrize("path", ROUTES)
SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 12, "ignore_eos": True}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@both_routes
def test_each_of_several_streamed_answers_has_its_index_its_end_and_its_share_of_the_usage(
    live: Live, path: str
) -> None:
    plain = live.plain(path, n=3, **SAMPLED)
    *chunks, usage, _ = live.streamed(path, n=3, stream_options={"include_usage": True}, **SAMPLED)
    texts, ends = {0: "", 1: "", 2: ""}, []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += text_of(choice)
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert sorted(ends) == [0, 1, 2]
    assert list(texts.values()) == [text_of(choice) for choice in plain["choices"]]
    assert usage["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 3 * 12
    assert usage["usage"]["prompt_tokens"] == live.plain(path, **SAMPLED)["usage"]["prompt_tokens"]


@both_routes
def test_answers_to_one_prompt_differ_and_come_again_with_the_seed(live: Live, path: str) -> None:
    first, again = ([text_of(c) for c in live.plain(path, n=3, **SAMPLED)["choices"]] for _ in range(2))
    assert first == again
    assert len(set(first)) == 3
    assert first[0] == live.text(path, **SAMPLED)


@pytest.mark.parametrize("as_ids", [False, True])
def test_prompts_times_answers_stand_in_order_with_their_own_prompt(live: Live, as_ids: bool) -> None:
    prompts = ["a", "bb", "ccc"]
    given = [list(prompt.encode()) for prompt in prompts] if as_ids else prompts
    fields = {"prompt": given, "n": 2, "echo": True, "temperature": 1, "max_tokens": 2, "seed": 1}
    answer = live.plain(COMPLETIONS, **fields)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for choice in answer["choices"]:
        prompt = prompts[choice["index"] // 2]
        assert choice["text"].startswith(prompt)
        assert not choice["text"].startswith(prompt * 2)
    assert answer["usage"]["prompt_tokens"] == 6
    *chunks, _ = live.streamed(COMPLETIONS, **fields)
    streamed = dict.fromkeys(range(6), "")
    for chunk in chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert list(streamed.values()) == [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("prompt", [["a", [97]], ["a", ""], [[97], []], [[97], [-1]]])
def test_one_prompt_at_fault_refuses_all_and_leaves_nothing_running(live: Live, prompt: Any) -> None:
    assert live.error(COMPLETIONS, prompt=prompt, n=2)["param"] == "prompt"
    stats = live.http.get("/stats").json()
    assert (stats["running"], stats["waiting"], stats["requests"]) == (0, 0, [])


def test_logprobs_of_chat_have_an_entry_for_each_token_and_make_the_text(live: Live) -> None:
    answer = live.plain(CHAT, **GREEDY, logit_bias=ASCII, logprobs=True, top_logprobs=2)
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert "".join(entry["token"] for entry in entries) == text_of(choice)
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert set(entry["top_logprobs"][0]) == {"token", "logprob", "bytes"}


def test_logprobs_of_completions_are_lists_as_long_as_the_answer(live: Live) -> None:
    answer = live.plain(COMPLETIONS, **GREEDY, logit_bias=ASCII, logprobs=2)
    lists = answer["choices"][0]["logprobs"]
    assert {len(values) for values in lists.values()} == {12}
    assert "".join(lists["tokens"]) == answer["choices"][0]["text"]
    assert lists["text_offset"] == list(range(12))


def test_echo_without_an_answer_tells_the_likelihood_of_the_prompt(live: Live) -> None:
    fields = {"prompt": "a b c", "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = live.plain(COMPLETIONS, **fields)
    choice = answer["choices"][0]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert choice["text"] == "a b c"
    assert first is None
    assert len(others) == 4
    assert all(math.isfinite(each) and each <= 0 for each in others)
    assert answer["usage"]["completion_tokens"] == 0
    *chunks, _ = live.streamed(COMPLETIONS, **fields)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a b c"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("seed", range(4))
def test_a_replacement_character_stands_only_for_bytes_that_are_none(
    live: Live, path: str, seed: int
) -> None:
    """Ids 0 to 255 are bytes here, and other tokens, which hold cut characters, are not drawn."""
    wanted = {str(byte): 30 for byte in [*"é🧑‍🚀한".encode(), *b"ab "]}
    fields = {
        "temperature": 1.5,
        "seed": seed,
        "max_tokens": 40,
        "logit_bias": wanted,
        "return_token_ids": True,
    }
    choice = live.plain(path, **fields)["choices"][0]
    assert text_of(choice) == bytes(choice["token_ids"]).decode(errors="replace")
    *chunks, _ = live.streamed(path, **fields)
    assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == text_of(choice)


@pytest.mark.parametrize(
    "value", [{"type": "json_schema"}, {"type": "xml"}, "json", {"type": "json_schema", "json_schema": {}}]
)
def test_response_format_without_its_wrapper_is_refused(live: Live, value: Any) -> None:
    assert live.error(CHAT, response_format=value)["param"].startswith("response_format")
    assert live.error(COMPLETIONS, response_format=value)["param"].startswith("response_format")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(live: Live, fields: dict[str, Any], param: str) -> None:
    assert live.error(CHAT, **fields)["param"] == param


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (COMPLETIONS, {"logprobs": 10**6}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"n": 10**6}, "n"),
        (COMPLETIONS, {"n": 0}, "n"),
        (COMPLETIONS, {"n": 2, "best_of": 1}, "best_of"),
        (COMPLETIONS, {"prompt": ["a"] * 200, "n": 16}, "n"),
    ],
)
def test_numbers_without_bounds_are_refused_by_name(
    live: Live, path: str, fields: dict[str, Any], param: str
) -> None:
    assert live.error(path, **fields)["param"] == param
