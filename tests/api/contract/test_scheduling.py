"""Pools that are too small, queues that are full, prefixes that look alike: and a stream beside them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.contract.live import Live, serve

COMPLETIONS = "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
PAGE = 16


def test_request_that_can_never_fit_is_refused_and_one_that_just_fits_completes(tiny_model: Path) -> None:
    """The last token of an answer needs no K/V, so a pool of 128 holds requests of 129."""
    with serve(tiny_model, num_pages=8, block_size=PAGE) as live, live.beside_a_stream(max_tokens=40):
        for num_tokens in (127, 128, 129):
            answer = live.plain(COMPLETIONS, prompt=[97] * 100, max_tokens=num_tokens - 100, **GREEDY)
            assert answer["usage"]["total_tokens"] == num_tokens
        error = live.error(COMPLETIONS, prompt=[97] * 100, max_tokens=30)
        assert error["code"] == "kv_pool_exceeded"
        assert "128" in error["message"]
        assert live.plain(COMPLETIONS, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_prompts_that_a_rolling_hash_confuses_are_answered_as_when_cold(tiny_model: Path) -> None:
    first = [100 + i % 50 for i in range(2 * PAGE)]
    others = [[*first[:at], first[at] + 31, first[at + 1] - 1, *first[at + 2 :]] for at in (0, 7, 15, 16, 30)]
    fields = {"max_tokens": 8, **GREEDY}
    with serve(tiny_model, enable_prefix_caching=False) as cold:
        expected = [cold.text(prompt=prompt, **fields) for prompt in (first, *others, first)]
    with serve(tiny_model) as warm, warm.beside_a_stream():
        assert [warm.text(prompt=prompt, **fields) for prompt in (first, *others, first)] == expected


def test_salts_part_the_cache_and_no_salt_is_a_part_of_its_own(live: Live) -> None:
    prompt = "a prefix of more than one page, which nobody else asks for"

    def cached(**fields: Any) -> int:
        usage = live.plain(COMPLETIONS, prompt=prompt, max_tokens=1, **fields)["usage"]
        num_tokens: int = (usage.get("prompt_tokens_details") or {"cached_tokens": 0})["cached_tokens"]
        return num_tokens

    with live.beside_a_stream():
        assert [cached(), cached()] == [0, 48]
        for salt in ("A", "B", "A|", "\x00"):
            assert [cached(cache_salt=salt), cached(cache_salt=salt)] == [0, 48]
        assert cached() == 48


INTERNALS: dict[str, Any] = {
    "cached_len": 5, "device_len": 1, "max_device_len": 10**9, "output_ids": [1], "is_resumed": True,
    "pages": [0], "num_preemptions": 3, "token_ids": [1], "extend_len": 0, "finish_reason": "stop",
    "inflight_middle_chunks": 1, "prompt_len": 0, "row": 0, "index": 9,
}  # fmt: skip


@pytest.mark.parametrize("chunk", [16, 64, 512])
@pytest.mark.parametrize("caching", [True, False])
def test_size_of_a_chunk_and_names_of_internals_change_no_text(
    tiny_model: Path, live: Live, chunk: int, caching: bool
) -> None:
    fields = {"prompt": [97 + i % 20 for i in range(56)], "max_tokens": 12, **GREEDY}
    settings = {
        "max_num_batched_tokens": chunk,
        "mixed_prefill_tokens": chunk,
        "enable_prefix_caching": caching,
    }
    with serve(tiny_model, **settings) as other, other.beside_a_stream():
        assert other.text(**fields) == live.text(**fields)
        response = other.http.post(COMPLETIONS, json={**fields, **INTERNALS})
        assert response.json()["choices"][0]["text"] == live.text(**fields)
        assert set(response.headers["x-legato-ignored"].split(",")) == INTERNALS.keys()


def test_beyond_its_bound_the_queue_refuses_and_then_service_is_normal(tiny_model: Path) -> None:
    body = {"prompt": "x", "max_tokens": 60, **GREEDY}
    with serve(tiny_model, max_num_seqs=2, max_num_queued_reqs=3) as live:
        alone = live.text(**body)
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda _: live.http.post(COMPLETIONS, json=body), range(48)))
        served = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(served) + len(refused) == 48
        assert refused
        assert {answer.json()["choices"][0]["text"] for answer in served} == {alone}
        for answer in refused:
            assert answer.json()["error"]["type"] == "overloaded"
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) >= 1
        assert live.text(**body) == alone
        assert live.pages() == (0, 256)
