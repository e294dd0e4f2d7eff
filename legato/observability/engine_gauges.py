"""What engines say of themselves, read at each scrape."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from legato.observability.twins import PREFIXES


class EngineGauges(Protocol):
    """State of an engine; `ipc.messages.EngineStats` fits. counters start at 0 with each process."""

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
    @property
    def deaths(self) -> int:
        """Of engines, this one's forerunners: does not start again at 0."""


ReadGauges = Callable[[], EngineGauges | None]


class EngineCollector(Collector):
    """Reads engines when Prometheus asks; one that does not run has gauges of 0 and keeps its counters."""

    def __init__(self, engines: Mapping[str, ReadGauges]) -> None:
        self._engines = engines
        self._totals = {model: _Totals() for model in engines}
        self._deaths = dict.fromkeys(engines, 0)

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is read at registration: no engine runs yet

    def collect(self) -> Iterable[Metric]:
        latest = {model: read() for model, read in self._engines.items()}
        totals = {model: self._totals[model].update(gauges) for model, gauges in latest.items()}
        for prefix in PREFIXES:
            for name, help, measure in GAUGES:
                gauge = GaugeMetricFamily(prefix + name, help, labels=["model_name"])
                for model, gauges in latest.items():
                    gauge.add_metric([model], measure(gauges) if gauges else 0)
                yield gauge
            for name, help, field in COUNTERS:
                counter = CounterMetricFamily(prefix + name, help, labels=["model_name"])
                for model, total in totals.items():
                    counter.add_metric([model], total[field])
                yield counter
        deaths = CounterMetricFamily("legato_engine_deaths", DEATHS_HELP, labels=["model_name"])
        for model, gauges in latest.items():
            self._deaths[model] = gauges.deaths if gauges else self._deaths[model]
            deaths.add_metric([model], self._deaths[model])
        yield deaths


class _Totals:
    """Counters that go on when an engine is replaced by one that starts again at 0."""

    def __init__(self) -> None:
        self._past = {field: 0 for _, _, field in COUNTERS}  # of engines that are gone
        self._now = dict(self._past)
        self._step = 0

    def update(self, gauges: EngineGauges | None) -> dict[str, int]:
        if gauges is not None:
            now = {field: int(getattr(gauges, field)) for field in self._now}
            if gauges.step < self._step or any(now[field] < self._now[field] for field in now):
                self._past = {field: self._past[field] + self._now[field] for field in now}
            self._now, self._step = now, gauges.step
        return {field: self._past[field] + self._now[field] for field in self._now}


def _kv_usage(gauges: EngineGauges) -> float:
    """Share of the pages that requests hold; those that are merely cached can be had at once."""
    all_pages = gauges.pages_held + gauges.pages_cached + gauges.pages_free
    return gauges.pages_held / all_pages if all_pages else 0.0


GAUGES: tuple[tuple[str, str, Callable[[EngineGauges], float]], ...] = (
    ("num_requests_running", "Requests in the running batch.", lambda gauges: gauges.running),
    ("num_requests_waiting", "Requests in the queue.", lambda gauges: gauges.waiting),
    ("kv_cache_usage_perc", "Pages held by requests over all pages, 0 to 1.", _kv_usage),
)
DEATHS_HELP = "Engine processes that ended unasked; another one took over what they had not finished."
COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("num_preemptions", "Requests sent back to the queue for want of pages.", "preemptions"),
)
