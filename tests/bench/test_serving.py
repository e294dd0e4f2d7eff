"""Works sent to fake endpoints: whose turn it is, what the figures mean, what is an error."""

import pytest

from legato.bench.endpoint import BenchError, TimedAnswer
from legato.bench.http_endpoint import open_endpoint
from legato.bench.serving import Repeats, measure, measure_works
from legato.bench.works import WORKS, WorkRequest
from tests.bench.fake_openai import FakeOpenAI, serving

W1, W3 = WORKS["W1_1"], WORKS["W3"]


class ScriptedEndpoint:
    """Gives the answers it was made with."""

    name = "scripted"

    def __init__(self, *answers: TimedAnswer) -> None:
        self._answers = list(answers)

    async def complete(self, request: WorkRequest) -> TimedAnswer:
        return self._answers.pop(0)


def test_two_servers_are_measured_in_turn_with_the_same_fresh_prompts() -> None:
    log: list[str] = []
    ours, theirs = FakeOpenAI("ours", log), FakeOpenAI("theirs", log)
    told: list[tuple[float, str]] = []
    with serving(ours, theirs):
        endpoints = [open_endpoint("ours", ours.url), open_endpoint("theirs", theirs.url, "another-model")]
        results = measure_works(
            endpoints, [W1, W3], Repeats(2, seed=0, vocab_size=1000), lambda *args: told.append(args)
        )
    assert log == ["ours", "theirs"] * 6
    prompts = [body["prompt"] for body in ours.bodies]
    assert prompts == [body["prompt"] for body in theirs.bodies]
    assert len(set(map(tuple, prompts))) == 6
    assert {body["model"] for body in theirs.bodies} == {"another-model"}
    assert [(each.work.name, each.endpoint_name, len(each.ratios)) for each in results] == [
        ("W1_1", "ours", 2), ("W1_1", "theirs", 0), ("W3", "ours", 2), ("W3", "theirs", 0),
    ]  # fmt: skip
    for own, other in (results[:2], results[2:]):
        walls = zip(own.repetitions, other.repetitions, strict=True)
        assert own.ratios == [theirs.wall_s / ours.wall_s for ours, theirs in walls]
    assert told[0] == (0.0, "W1_1, ours, 0 of 2")
    assert told[-1][1] == "W3, theirs, 2 of 2"


def test_figures_are_those_of_the_times() -> None:
    start = 1e9  # later than whatever the clock says
    answers = [
        TimedAnswer(start, [start + 1, start + 2, start + 3], start + 3, num_tokens=3),
        TimedAnswer(start, [start + 3, start + 9], start + 9, num_tokens=2),
    ]
    requests = [WorkRequest([1, 2, 3], 3), WorkRequest([4], 2)]
    figures = measure(ScriptedEndpoint(*answers), W1, requests)
    assert (figures.ttft_s, figures.ttft_max_s) == (2, 3)
    assert (figures.itl_s, figures.itl_p99_s) == (1, 1)  # of 1, 1, 6
    assert figures.output_tokens_per_s == 5 / figures.wall_s
    assert figures.prompt_tokens_per_s == 4 / figures.wall_s


def test_single_token_has_no_time_between_tokens() -> None:
    answer = TimedAnswer(1e9, [1e9 + 1], 1e9 + 1, num_tokens=1)
    assert measure(ScriptedEndpoint(answer), W3, [WorkRequest([1], 1)]).itl_s is None


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (FakeOpenAI("short", [], num_missing=1), "an answer has 49 tokens in 49 events; 50 were asked for"),
        (FakeOpenAI("ill", [], status="500 Oh No"), r"4 of 4 requests failed: HTTP/1\.1 500 Oh No"),
    ],
    ids=lambda each: each.name if isinstance(each, FakeOpenAI) else "",
)
def test_what_fails_names_server_and_work(server: FakeOpenAI, error: str) -> None:
    with serving(server), pytest.raises(BenchError, match=f"{server.name}, work W1_4: {error}"):
        measure_works(
            [open_endpoint(server.name, server.url)], [WORKS["W1_4"]], Repeats(1, 0, 1000), lambda *_: None
        )
