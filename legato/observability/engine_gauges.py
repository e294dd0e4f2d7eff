"""What engines say of themselves, read at each scrape."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from legato.observability.twins import PREFIXES


class EngineGauges(Protocol):
    """State of an engine; `ipc.messages.EngineStats` fits. counters go on when one replaces another."""

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
        """Of engines, this one's forerunners."""


ReadGauges = Callable[[], EngineGauges | None]


class EngineCollector(Collector):
    """Reads engines when Prometheus asks; one that does not run has gauges of 0 and keeps its counters."""

    def __init__(self, engines: Mapping[str, ReadGauges]) -> None:
        self._engines = engines
        self._last: dict[str, EngineGauges] = {}  # of engines that have ever said something

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is read at registration: no engine runs yet

    def collect(self) -> Iterable[Metric]:
        latest = {model: read() for model, read in self._engines.items()}
        self._last |= {model: gauges for model, gauges in latest.items() if gauges}
        for prefix in PREFIXES:
            for name, help, measure in GAUGES:
                gauge = GaugeMetricFamily(prefix + name, help, labels=["model_name"])
                for model, gauges in latest.items():
                    gauge.add_metric([model], measure(gauges) if gauges else 0)
                yield gauge
            for name, help, field in COUNTERS:
                counter = CounterMetricFamily(prefix + name, help, labels=["model_name"])
                for model in latest:
                    counter.add_metric([model], getattr(self._last.get(model), field, 0))
                yield counter
        deaths = CounterMetricFamily("legato_engine_deaths", DEATHS_HELP, labels=["model_name"])
        for model in latest:
            deaths.add_metric([model], getattr(self._last.get(model), "deaths", 0))
        yield deaths


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
