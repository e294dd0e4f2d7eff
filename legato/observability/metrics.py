"""One set of measurements under two views: `legato_*`, and the `vllm:` names that routers read."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIXES = ("legato_", "vllm:")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = ("stop", "length", "abort", "error")

# Edges of vLLM, in seconds; legato's view adds those that objectives are stated in.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
TOKEN_GAP_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
REQUEST_TIME_BUCKETS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
OBJECTIVE_EDGES = (0.2, 2.0, 3.0)


class EngineGauges(Protocol):
    """What an engine says of itself; `ipc.messages.EngineStats` fits. Counters restart with the engine."""

    @property
    def step(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def pages_held(self) -> int: ...
    @property
    def pages_cached(self) -> int: ...
    @property
    def pages_free(self) -> int: ...
    @property
    def prefix_queries(self) -> int: ...
    @property
    def prefix_hits(self) -> int: ...
    @property
    def preemptions(self) -> int: ...


ReadGauges = Callable[[], EngineGauges | None]


class Metrics:
    """Counts what happens to requests; knows nothing of HTTP. One registry an app.

    engines  model name -> reads the engine's latest gauges, at each scrape; None while no engine runs
    clock    seconds, monotonic; the clock of `received_at` in accepted()
    """

    def __init__(
        self,
        engines: Mapping[str, ReadGauges],
        *,
        max_model_len: int = 131_072,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._registry = CollectorRegistry()
        models = tuple(engines)
        lengths = _steps_1_2_5(max_model_len)
        self._accepted = self._counter("requests_accepted", "Prompts that the engine has queued.", models)
        self._rejected = self._counter("admission_rejections", "Requests not queued.", models, "reason")
        self._finished = self._counter(
            "request_success", "Prompts that ended.", models, "finished_reason", FINISH_REASONS
        )
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens computed or found cached.", models
        )
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.", models)
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "Request head received to first text written.",
            models,
            TTFT_BUCKETS,
        )
        self._token_gap = self._histogram(
            "inter_token_latency_seconds",
            "Gaps between a request's tokens, one sample a token.",
            models,
            TOKEN_GAP_BUCKETS,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "Request head received to its end.", models, REQUEST_TIME_BUCKETS
        )
        self._prompt_len = self._histogram("request_prompt_tokens", "Prompt lengths.", models, lengths)
        self._generation_len = self._histogram(
            "request_generation_tokens", "Answer lengths.", models, lengths
        )
        self._registry.register(_EngineCollector(engines))

    def accepted(self, model: str, *, received_at: float) -> "RequestMeter":
        """Open the account of one prompt that was queued."""
        self._accepted.of(model).add()
        return RequestMeter(self, model, received_at)

    def rejected(self, model: str, reason: str) -> None:
        """Count a request that was not queued; `reason` is one of a few codes, never a client's text."""
        self._rejected.of(model, reason).add()

    def render(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(
        self,
        name: str,
        help: str,
        models: Sequence[str],
        label: str | None = None,
        values: Sequence[str] = (),
    ) -> "_Views":
        labels = ("model_name", label) if label else ("model_name",)
        views = _Views([Counter(prefix + name, help, labels, registry=self._registry) for prefix in PREFIXES])
        for model in models:  # so that a rate over them is 0 from the start, not absent
            for known in [(value,) for value in values] if label else [()]:
                views.of(model, *known)
        return views

    def _histogram(self, name: str, help: str, models: Sequence[str], buckets: Sequence[float]) -> "_Views":
        edges = {prefix: list(buckets) for prefix in PREFIXES}
        if name.endswith("_seconds"):
            edges["legato_"] = sorted({*buckets, *OBJECTIVE_EDGES})
        views = _Views(
            [
                Histogram(
                    prefix + name, help, ("model_name",), buckets=edges[prefix], registry=self._registry
                )
                for prefix in PREFIXES
            ]
        )
        for model in models:
            views.of(model)
        return views


class RequestMeter:
    """The account of one prompt, from accepted to its one end; later calls after the end count nothing."""

    def __init__(self, metrics: Metrics, model: str, received_at: float) -> None:
        self._metrics = metrics
        self._model = model
        self._received_at = received_at
        self._last_token_at: float | None = None
        self._has_text = False
        self._num_tokens = 0
        self._is_open = True

    def tokens(self, num_tokens: int, *, has_text: bool, prompt_tokens: int) -> None:
        """Count what one step gave; `prompt_tokens` is the prompt's whole length."""
        if not self._is_open:
            return
        now = self._metrics.clock()
        if num_tokens:
            self._count_tokens(num_tokens, prompt_tokens, now)
        if has_text and not self._has_text:
            self._has_text = True
            self._metrics._ttft.of(self._model).observe(now - self._received_at)

    def finished(self, reason: str) -> None:
        """Close the account; `reason` is one of FINISH_REASONS."""
        if not self._is_open:
            return
        self._is_open = False
        metrics, model = self._metrics, self._model
        now = metrics.clock()
        if self._num_tokens and not self._has_text:  # tokens without any text, e.g. an end marker alone
            metrics._ttft.of(model).observe(now - self._received_at)
        metrics._finished.of(model, reason).add()
        metrics._e2e.of(model).observe(now - self._received_at)
        metrics._generation_len.of(model).observe(self._num_tokens)

    def _count_tokens(self, num_tokens: int, prompt_tokens: int, now: float) -> None:
        metrics, model = self._metrics, self._model
        if self._last_token_at is None:
            metrics._prompt_tokens.of(model).add(prompt_tokens)
            metrics._prompt_len.of(model).observe(prompt_tokens)
        else:
            gaps = metrics._token_gap.of(model)
            for _ in range(num_tokens):
                gaps.observe((now - self._last_token_at) / num_tokens)
        self._last_token_at = now
        self._num_tokens += num_tokens
        metrics._generation_tokens.of(model).add(num_tokens)


class _Views:
    """The same measurement under every prefix."""

    def __init__(self, metrics: Sequence[Counter] | Sequence[Histogram]) -> None:
        self._metrics = metrics
        self._children: dict[tuple[str, ...], _Child] = {}

    def of(self, *labels: str) -> "_Child":
        if labels not in self._children:
            self._children[labels] = _Child([metric.labels(*labels) for metric in self._metrics])
        return self._children[labels]


@dataclass(frozen=True, slots=True)
class _Child:
    metrics: Sequence[Counter | Histogram]

    def add(self, amount: float = 1) -> None:
        for metric in self.metrics:
            assert isinstance(metric, Counter)
            metric.inc(amount)

    def observe(self, value: float) -> None:
        for metric in self.metrics:
            assert isinstance(metric, Histogram)
            metric.observe(value)


class _EngineCollector(Collector):
    """Reads each engine's gauges at scrape time."""

    GAUGES: tuple[tuple[str, str, Callable[[EngineGauges], float]], ...] = (
        ("num_requests_running", "Requests in the running batch.", lambda gauges: gauges.running),
        ("num_requests_waiting", "Requests in the queue.", lambda gauges: gauges.waiting),
        (
            "kv_cache_usage_perc",
            "Pages held by running requests over all pages, 0 to 1.",
            lambda gauges: _usage(gauges),
        ),
    )
    COUNTERS = (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
        ("prefix_cache_hits", "Prompt tokens found there.", "prefix_hits"),
        ("num_preemptions", "Requests sent back to the queue for want of pages.", "preemptions"),
    )

    def __init__(self, engines: Mapping[str, ReadGauges]) -> None:
        self._engines = engines
        self._totals = {model: _Totals([field for _, _, field in self.COUNTERS]) for model in engines}

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is read at registration: no engine runs yet

    def collect(self) -> Iterable[Metric]:
        latest = {model: read() for model, read in self._engines.items()}
        for prefix in PREFIXES:
            for name, help, measure in self.GAUGES:
                gauge = GaugeMetricFamily(prefix + name, help, labels=["model_name"])
                for model, gauges in latest.items():
                    gauge.add_metric([model], measure(gauges) if gauges else 0)
                yield gauge
            for name, help, field in self.COUNTERS:
                counter = CounterMetricFamily(prefix + name, help, labels=["model_name"])
                for model, gauges in latest.items():
                    counter.add_metric([model], self._totals[model].read(gauges)[field])
                yield counter


class _Totals:
    """Counters that go on when an engine is replaced and its own start again at 0."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._past = dict.fromkeys(fields, 0)
        self._now = dict.fromkeys(fields, 0)
        self._step = 0

    def read(self, gauges: EngineGauges | None) -> dict[str, int]:
        if gauges is not None:
            now = {field: int(getattr(gauges, field)) for field in self._now}
            if gauges.step < self._step or any(
                now[field] < self._now[field] for field in now
            ):  # a new engine
                self._past = {field: self._past[field] + self._now[field] for field in now}
            self._now, self._step = now, gauges.step
        return {field: self._past[field] + self._now[field] for field in self._now}


def _usage(gauges: EngineGauges) -> float:
    all_pages = gauges.pages_held + gauges.pages_cached + gauges.pages_free
    return gauges.pages_held / all_pages if all_pages else 0.0


def _steps_1_2_5(maximum: int) -> list[float]:
    """1, 2, 5, 10, 20, … up to `maximum`."""
    steps = [factor * 10**power for power in range(len(str(maximum))) for factor in (1, 2, 5)]
    return [float(step) for step in steps if step <= maximum]
