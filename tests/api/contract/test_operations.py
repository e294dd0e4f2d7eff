"""Numbers that operators read: histograms, counters and usage agree with what clients were given."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.contract.live import ASCII, ROUTES, Live, serve

COMPLETIONS = "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def metrics_of(live: Live) -> dict[str, float]:
    """Series without their labels -> value; several of one name are summed."""
    values: dict[str, float] = {}
    for line in live.http.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            if "_bucket{" not in series:
                name = series.partition("{")[0]
                values[name] = values.get(name, 0) + float(value)
    return values


def test_metrics_count_requests_and_tokens_once_whatever_happened_to_them(tiny_model: Path) -> None:
    """Prompts of several chunks, preempted ones in a small pool, refused ones, and a stream all the while."""
    with serve(tiny_model, num_pages=10, block_size=16, max_num_batched_tokens=32) as live:
        before = metrics_of(live)
        usages = [
            live.plain(COMPLETIONS, prompt=[97] * 100, max_tokens=8, **GREEDY)["usage"] for _ in range(3)
        ]
        several = {"prompt": [[98 + i] * 40 for i in range(4)], "max_tokens": 30, **GREEDY}
        usages.append(live.plain(COMPLETIONS, **several)["usage"])
        for _ in range(2):
            live.error(COMPLETIONS, prompt=[97] * 600)
        after = metrics_of(live)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown["legato_prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert grown["legato_generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    assert grown["legato_time_to_first_token_seconds_count"] == 3 + 4
    assert all(value >= 0 for name, value in grown.items() if name.endswith(("_total", "_count", "_sum")))
    assert after["legato_num_requests_running"] == after["legato_num_requests_waiting"] == 0


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2, "temperature": 1, "seed": 3}, {"stop": ["e"], "logit_bias": ASCII, "ignore_eos": False}],
)
def test_usage_is_the_same_streamed_and_plain(live: Live, path: str, fields: dict[str, Any]) -> None:
    body = {**GREEDY, "max_tokens": 24, **fields}
    live.plain(path, **body)  # from here on the prefix is warm for both
    plain = live.plain(path, **body)["usage"]
    streamed = live.streamed(path, **body, stream_options={"include_usage": True})[-2]["usage"]
    assert streamed == plain
    assert plain["total_tokens"] == plain["prompt_tokens"] + plain["completion_tokens"]
