"""What is measured, under a clock that the test moves."""

from dataclasses import dataclass, field

import pytest

from legato.ipc.messages import EngineStats
from legato.observability.metrics import Metrics

MODEL = 'model_name="m"'


@dataclass
class Bench:
    """Metrics of one model, with its engine's stats and the time at hand."""

    now: float = 100.0
    stats: EngineStats | None = None
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics({"m": lambda: self.stats}, max_model_len=500, clock=lambda: self.now)

    def samples(self) -> dict[str, float]:
        lines = [line for line in self.metrics.render().decode().splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def sample(self, name: str, labels: str = MODEL) -> float:
        """The value of a series, which must be the same in both views."""
        values = {self.samples()[f"{prefix}{name}{{{labels}}}"] for prefix in ("legato_", "vllm:")}
        assert len(values) == 1
        return values.pop()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_first_token_is_timed_from_the_requests_head_to_its_first_text(bench: Bench) -> None:
    meter = bench.metrics.accepted("m", received_at=98.0)
    meter.tokens(1, has_text=False, prompt_tokens=7)  # half a character
    bench.now = 101.0
    meter.tokens(1, has_text=True, prompt_tokens=7)
    bench.now = 102.0
    meter.tokens(1, has_text=True, prompt_tokens=7)

    assert bench.sample("time_to_first_token_seconds_sum") == 3.0
    assert bench.sample("time_to_first_token_seconds_count") == 1


def test_times_at_which_series_were_made_are_left_out(bench: Bench) -> None:
    bench.metrics.accepted("m", received_at=98.0)

    assert "legato_requests_accepted_total" in bench.metrics.render().decode()
    assert "_created" not in bench.metrics.render().decode()


def test_step_of_k_tokens_gives_k_samples_of_a_kth_of_the_gap(bench: Bench) -> None:
    meter = bench.metrics.accepted("m", received_at=100.0)
    meter.tokens(3, has_text=True, prompt_tokens=7)
    bench.now = 101.0
    meter.tokens(4, has_text=True, prompt_tokens=7)

    assert bench.sample("inter_token_latency_seconds_count") == 4
    assert bench.sample("inter_token_latency_seconds_sum") == 1.0
    assert bench.sample("inter_token_latency_seconds_bucket", f'le="0.2",{MODEL}') == 0
    assert bench.sample("inter_token_latency_seconds_bucket", f'le="0.3",{MODEL}') == 4


def test_prompt_is_counted_once_and_answers_by_their_tokens(bench: Bench) -> None:
    meter = bench.metrics.accepted("m", received_at=100.0)
    for _ in range(3):
        meter.tokens(2, has_text=True, prompt_tokens=7)
    bench.now = 104.0
    meter.finished("stop")

    assert bench.sample("prompt_tokens_total") == 7
    assert bench.sample("generation_tokens_total") == 6
    assert bench.sample("request_prompt_tokens_sum") == 7
    assert bench.sample("request_generation_tokens_sum") == 6
    assert bench.sample("e2e_request_latency_seconds_sum") == 4.0


def test_request_ends_once(bench: Bench) -> None:
    meter = bench.metrics.accepted("m", received_at=100.0)
    meter.finished("stop")
    meter.finished("abort")
    meter.tokens(1, has_text=True, prompt_tokens=7)

    assert bench.sample("request_success_total", f'finished_reason="stop",{MODEL}') == 1
    assert bench.sample("request_success_total", f'finished_reason="abort",{MODEL}') == 0
    assert bench.sample("generation_tokens_total") == 0


def test_tokens_without_text_still_give_a_first_token(bench: Bench) -> None:
    silent = bench.metrics.accepted("m", received_at=100.0)
    silent.tokens(1, has_text=False, prompt_tokens=7)
    silent.finished("stop")
    bench.metrics.accepted("m", received_at=100.0).finished("abort")  # gave nothing at all

    assert bench.sample("time_to_first_token_seconds_count") == 1
    assert bench.sample("e2e_request_latency_seconds_count") == 2


def test_series_are_zero_before_the_first_request(bench: Bench) -> None:
    for reason in ("stop", "length", "abort", "error"):
        assert bench.sample("request_success_total", f'finished_reason="{reason}",{MODEL}') == 0
    assert bench.sample("time_to_first_token_seconds_count") == 0
    assert bench.sample("num_requests_running") == 0
    assert bench.sample("prefix_cache_hits_total") == 0


def test_gauges_follow_the_engine_and_cached_pages_are_not_in_use(bench: Bench) -> None:
    bench.stats = EngineStats(running=2, waiting=5, pages_held=25, pages_cached=50, pages_free=25)

    assert bench.sample("num_requests_running") == 2
    assert bench.sample("num_requests_waiting") == 5
    assert bench.sample("kv_cache_usage_perc") == 0.25


def test_counters_of_the_engine_stay_while_it_is_replaced(bench: Bench) -> None:
    seen = []
    for stats in (
        EngineStats(step=50, prefix_queries=100, prefix_hits=40, preemptions=2),
        None,  # being replaced
        EngineStats(step=51, prefix_queries=100, prefix_hits=40, preemptions=2),
        EngineStats(step=9, prefix_queries=110, prefix_hits=45, preemptions=2),
    ):
        bench.stats = stats
        seen.append([bench.sample(f"{name}_total") for name in ("prefix_cache_queries", "prefix_cache_hits")])

    assert seen == [[100, 40], [100, 40], [100, 40], [110, 45]]
    assert bench.sample("num_preemptions_total") == 2


def test_deaths_of_engines_are_counted_also_while_the_next_one_loads(bench: Bench) -> None:
    seen = []
    for stats in (EngineStats(), None, EngineStats(step=3, deaths=1), None, EngineStats(deaths=4)):
        bench.stats = stats
        seen.append(bench.samples()['legato_engine_deaths_total{model_name="m"}'])
    assert seen == [0, 0, 1, 1, 4]


def test_vllms_buckets_are_exact_and_legatos_have_the_edges_of_objectives(bench: Bench) -> None:
    edges: dict[str, list[str]] = {"legato_": [], "vllm:": []}
    for series in bench.samples():
        for prefix in edges:
            if series.startswith(f"{prefix}time_to_first_token_seconds_bucket"):
                edges[prefix].append(series.split('"')[1])

    assert edges["vllm:"] == [
        *(
            "0.001",
            "0.005",
            "0.01",
            "0.02",
            "0.04",
            "0.06",
            "0.08",
            "0.1",
            "0.25",
            "0.5",
            "0.75",
            "1.0",
            "2.5",
        ),
        *("5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf"),
    ]
    assert set(edges["legato_"]) - set(edges["vllm:"]) == {"0.2", "2.0", "3.0"}


def test_lengths_have_steps_of_1_2_5_up_to_the_context(bench: Bench) -> None:
    edges = [s.split('"')[1] for s in bench.samples() if s.startswith("vllm:request_prompt_tokens_bucket")]
    assert edges == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "+Inf"]


def test_rejections_are_counted_by_reason(bench: Bench) -> None:
    bench.metrics.rejected("m", "queue_full")
    assert bench.sample("admission_rejections_total", f'{MODEL},reason="queue_full"') == 1
