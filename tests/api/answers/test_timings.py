"""Timings of answers: what they hold, and when they are told."""

from fastapi.testclient import TestClient

from legato.api.answers.openai import usage_json
from legato.api.answers.timings import timings_json
from legato.core.timing import Timing
from legato.frontend.generator import Usage
from tests.api.openai_calls import USER, refused
from tests.api.sse_events import events_of


def test_rates_leave_out_cached_tokens_and_the_first_one() -> None:
    usage = usage_json([Usage(40, 11, 8)], [Usage(40, 11, 8)])
    assert timings_json([Timing(0.25, 2, 0.5)], usage) == {
        "queue_ms": 250,
        "cache_n": 8,
        "prompt_n": 32,
        "prompt_ms": 2000,
        "prompt_per_token_ms": 62.5,
        "prompt_per_second": 16,
        "predicted_n": 11,
        "predicted_ms": 500,
        "predicted_per_token_ms": 50,
        "predicted_per_second": 20,
    }


def test_several_answers_take_as_long_as_the_slowest() -> None:
    usage = usage_json([Usage(4, 3)], [Usage(4, 3), Usage(4, 5)])
    timings = timings_json([Timing(1, 2, 1), Timing(0, 1, 3)], usage)
    assert (timings["queue_ms"], timings["prompt_ms"], timings["predicted_ms"]) == (1000, 2000, 3000)
    assert timings["predicted_per_second"] == 2


def test_answer_without_tokens_has_no_rates() -> None:
    timings = timings_json([Timing()], usage_json([Usage(0, 0)], [Usage(0, 0)]))
    assert set(timings.values()) == {0}


def test_timings_are_told_only_when_asked_for(client: TestClient) -> None:
    for path, prompt in (
        ("/v1/completions", {"prompt": "abc"}),
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3}),
    ):
        assert "timings" not in client.post(path, json=prompt).json()
        answer = client.post(path, json=prompt | {"return_timings": True}).json()
        assert answer["timings"]["queue_ms"] == 250
        assert answer["timings"]["predicted_n"] == 3
    assert refused(client, "/v1/completions", {"prompt": "a", "return_timings": 1})["param"] == (
        "return_timings"
    )


def test_stream_tells_them_with_the_end_of_each_choice_or_in_every_chunk(client: TestClient) -> None:
    def told(wish: str) -> list[int | None]:
        body = {"prompt": ["ab", "c"], "stream": True, wish: True}
        events = events_of(client.post("/v1/completions", json=body).text)[:-1]
        return [event["timings"]["predicted_n"] if "timings" in event else None for event in events]

    assert told("return_timings") == [1, None, 2]
    assert told("timings_per_token") == [1, 1, 2]
