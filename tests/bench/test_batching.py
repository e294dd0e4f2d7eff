"""Measuring without a server: what is posted, what must be the same, what is predicted."""

from collections.abc import Mapping
from typing import Any

import pytest

from legato.bench.batching import Comparison, Measurement, Workload, check_same, measure, predict_static_s
from legato.bench.endpoint import BenchError


class FakeServer:
    """Answers in rounds of 4; `texts` are appended to the prompts, the next one at each call."""

    name = "fake"

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.bodies: list[Mapping[str, Any]] = []
        self.rounds = 7

    def get(self, path: str) -> Any:
        assert path == "/stats"
        return {"rounds": self.rounds}

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        assert path == "/generate"
        self.bodies.append(body)
        self.rounds += -(-len(body["prompts"]) // 4)
        text = self.texts.pop(0)
        return {"generated_texts": [prompt + text for prompt in body["prompts"]]}


WORKLOAD = Workload(prompts=["a", "b", "c", "d", "e", "f"], nums=[1, 5], repeats=2, fields={"max_tokens": 3})


def test_the_first_prompts_are_posted_in_one_request_and_rounds_are_counted() -> None:
    server = FakeServer("!", "!")
    measured = measure(server, WORKLOAD, 5)  # type: ignore[arg-type]
    assert server.bodies == [{"max_tokens": 3, "prompts": ["a", "b", "c", "d", "e"]}] * 2
    assert measured.texts == ("a!", "b!", "c!", "d!", "e!")
    assert measured.num_rounds == 2
    assert measured.seconds > 0


def test_server_that_changes_its_mind_is_told() -> None:
    with pytest.raises(BenchError, match="the fake server gave other texts when asked again, with 1 prompts"):
        measure(FakeServer("!", "?"), WORKLOAD, 1)  # type: ignore[arg-type]


def test_first_difference_between_the_policies_is_named() -> None:
    static, continuous = (Measurement(1.0, 1, texts) for texts in (("a", "b", "c"), ("a", "x", "y")))
    check_same(Comparison(3, static, static))
    with pytest.raises(
        BenchError, match=r"differ with 3 prompts, at prompt 1:\n  static +'b'\n  continuous +'x'"
    ):
        check_same(Comparison(3, static, continuous))


@pytest.mark.parametrize(("num", "seconds"), [(1, 2.5), (4, 2.5), (5, 5.0), (16, 10.0), (64, 40.0)])
def test_static_batching_takes_a_round_for_each_four_prompts(num: int, seconds: float) -> None:
    assert predict_static_s(num, round_s=2.5) == seconds
