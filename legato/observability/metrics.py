"""Metrics: what happens to requests, counted for Prometheus; knows nothing of HTTP."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from legato.observability.engine_gauges import EngineCollector, ReadGauges
from legato.observability.twins import OBJECTIVE_EDGES, TwinCounter, TwinHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")

# vLLM's edges, in seconds.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
TOKEN_GAP_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
E2E_BUCKETS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip


class Metrics:
    """All measurements of one app, in a registry of its own.

    engines  model name -> reads the engine's latest gauges, at each scrape; None while no engine runs
    clock    seconds, monotonic; also the clock of `received_at` in accepted()
    """

    def __init__(
        self,
        engines: Mapping[str, ReadGauges],
        *,
        max_model_len: int = 131_072,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._registry = registry = _Registry()
        model = ("model_name",)
        lengths = _steps_1_2_5(max_model_len)
        # requests: a call with several prompts counts as so many
        self.num_accepted = TwinCounter(registry, "requests_accepted", "Requests queued.", model, ["legato_"])
        self.num_rejected = TwinCounter(
            registry, "admission_rejections", "Calls refused, nothing queued.", (*model, "reason")
        )
        self.num_finished = TwinCounter(
            registry, "request_success", "Requests ended.", (*model, "finished_reason")
        )
        self.num_slow_readers = TwinCounter(
            registry, "slow_readers", "Calls aborted whose client did not read.", model, ["legato_"]
        )
        self.prompt_tokens = TwinCounter(registry, "prompt_tokens", "Tokens of prompts.", model)
        self.generation_tokens = TwinCounter(registry, "generation_tokens", "Tokens generated.", model)
        seconds = partial(TwinHistogram, registry, labels=model, legato_edges=OBJECTIVE_EDGES)
        self.ttft = seconds(
            "time_to_first_token_seconds",
            "Request head received to first text written.",
            buckets=TTFT_BUCKETS,
        )
        self.ttft_ratio = TwinHistogram(
            registry,
            "time_to_first_token_prediction_ratio",
            "Time to first token over what was predicted when the request came.",
            model,
            RATIO_BUCKETS,
            prefixes=["legato_"],
        )
        self.token_gap = seconds(
            "inter_token_latency_seconds",
            "Gaps between a request's tokens, one sample a token.",
            buckets=TOKEN_GAP_BUCKETS,
        )
        self.e2e = seconds(
            "e2e_request_latency_seconds", "Request head received to end.", buckets=E2E_BUCKETS
        )
        self.prompt_len = TwinHistogram(registry, "request_prompt_tokens", "Prompt lengths.", model, lengths)
        self.generation_len = TwinHistogram(
            registry, "request_generation_tokens", "Answer lengths.", model, lengths
        )
        registry.register(EngineCollector(engines))
        for name in engines:
            self._declare(name)

    def accepted(self, model: str, *, received_at: float) -> "RequestMeter":
        """Open the account of one request that was queued."""
        self.num_accepted.add(model)
        return RequestMeter(self, model, received_at)

    def rejected(self, model: str, reason: str) -> None:
        """Count a call of which nothing was queued; `reason` is one of a few codes, never a client's text."""
        self.num_rejected.add(model, reason)

    def render(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _declare(self, model: str) -> None:
        for counter in (self.num_accepted, self.num_slow_readers, self.prompt_tokens, self.generation_tokens):
            counter.add(model, amount=0)
        for reason in FINISH_REASONS:
            self.num_finished.add(model, reason, amount=0)
        for histogram in (
            self.ttft,
            self.ttft_ratio,
            self.token_gap,
            self.e2e,
            self.prompt_len,
            self.generation_len,
        ):
            histogram.declare(model)


class _Registry(CollectorRegistry):
    """Leaves out the times at which series were made: as many lines again, which nobody reads."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric


class RequestMeter:
    """The account of one request, from accepted to its one end; what is told after the end counts nothing.

    predicted_ttft_s  what its client was told to expect, if anything
    """

    def __init__(self, metrics: Metrics, model: str, received_at: float) -> None:
        self.predicted_ttft_s: float | None = None
        self._metrics = metrics
        self._model = model
        self._received_at = received_at
        self._last_token_at: float | None = None
        self._num_tokens = 0
        self._has_text = False
        self._is_open = True

    def tokens(self, num_tokens: int, *, has_text: bool, prompt_tokens: int) -> None:
        """Count what one step gave; `prompt_tokens` is the whole prompt's length."""
        if not self._is_open:
            return
        now = self._metrics.clock()
        if num_tokens:
            self._count_tokens(num_tokens, prompt_tokens, now)
        if has_text and not self._has_text:
            self._has_text = True
            self._count_first_text(now - self._received_at)

    def finished(self, reason: str) -> None:
        """Close the account; `reason` is one of FINISH_REASONS."""
        if not self._is_open:
            return
        self._is_open = False
        metrics, model = self._metrics, self._model
        elapsed_s = metrics.clock() - self._received_at
        if self._num_tokens and not self._has_text:  # tokens without text, e.g. an end marker alone
            self._count_first_text(elapsed_s)
        metrics.num_finished.add(model, reason)
        metrics.e2e.observe(model, value=elapsed_s)
        metrics.generation_len.observe(model, value=self._num_tokens)

    def _count_first_text(self, ttft_s: float) -> None:
        self._metrics.ttft.observe(self._model, value=ttft_s)
        if self.predicted_ttft_s:
            self._metrics.ttft_ratio.observe(self._model, value=ttft_s / self.predicted_ttft_s)

    def _count_tokens(self, num_tokens: int, prompt_tokens: int, now: float) -> None:
        metrics, model = self._metrics, self._model
        if self._last_token_at is None:
            metrics.prompt_tokens.add(model, amount=prompt_tokens)
            metrics.prompt_len.observe(model, value=prompt_tokens)
        else:
            for _ in range(num_tokens):
                metrics.token_gap.observe(model, value=(now - self._last_token_at) / num_tokens)
        self._last_token_at = now
        self._num_tokens += num_tokens
        metrics.generation_tokens.add(model, amount=num_tokens)


def _steps_1_2_5(maximum: int) -> list[float]:
    """1, 2, 5, 10, 20, … up to `maximum`."""
    steps = [factor * 10**power for power in range(len(str(maximum))) for factor in (1, 2, 5)]
    return [float(step) for step in steps if step <= maximum]
