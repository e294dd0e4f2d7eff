"""A measurement under two names: `legato_…`, and the `vllm:…` that routers and dashboards read."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

PREFIXES = ("legato_", "vllm:")
OBJECTIVE_EDGES = (0.2, 2.0, 3.0)  # seconds that objectives are stated in; vLLM's buckets have no such edges


class TwinCounter:
    """A counter with equal values under each prefix."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        help: str,
        labels: Sequence[str],
        prefixes: Sequence[str] = PREFIXES,
    ) -> None:
        self._twins = [Counter(prefix + name, help, labels, registry=registry) for prefix in prefixes]

    def add(self, *labels: str, amount: float = 1) -> None:
        """Count; an amount of 0 makes the series appear, so that its rate is 0 and not absent."""
        for twin in self._twins:
            twin.labels(*labels).inc(amount)


class TwinHistogram:
    """A histogram with equal samples under each prefix.

    buckets       vLLM's edges
    legato_edges  further edges, in legato's view alone
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        help: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        legato_edges: Sequence[float] = (),
        prefixes: Sequence[str] = PREFIXES,
    ) -> None:
        edges = {"legato_": sorted({*buckets, *legato_edges}), "vllm:": list(buckets)}
        self._twins = [
            Histogram(prefix + name, help, labels, buckets=edges[prefix], registry=registry)
            for prefix in prefixes
        ]

    def declare(self, *labels: str) -> None:
        """Make the series appear before its first sample."""
        for twin in self._twins:
            twin.labels(*labels)

    def observe(self, *labels: str, value: float) -> None:
        for twin in self._twins:
            twin.labels(*labels).observe(value)
