"""The recorder over prometheus_client: one registry a recorder, families as `names.py` lists them.

Owns the mapping from calls to families. Needs the extra `telemetry`; ask `open_metrics` for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ..gate.facts import Arm, Reason
from ..gate.trial import Saving
from ..outcomes import Outcome
from ..store.tier import Kind
from . import names
from .metrics import Metrics
from .names import Bound, Choice, Metric, Mode, Part, Path, StepKind

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics(Metrics):
    """Keeps every family of `names.METRICS` in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in names.METRICS:
            self._register(metric)
        # From the first scrape on: a counter that appears with its first event hides that event from rate().
        for outcome in Outcome:
            self._counter(names.LEDGER_TOKENS, outcome)
        for choice in Choice:
            self._counter(names.LOST_SECONDS, choice)
        for part in Part:
            self._counter(names.FAILURES, part)

    def decided(self, choice: Choice, reason: Reason, arm: Arm) -> None:
        self._counter(names.DECISIONS, choice, reason, arm).inc()

    def booked(self, ledger: Mapping[Outcome, int]) -> None:
        for outcome, tokens in ledger.items():
            self._counter(names.LEDGER_TOKENS, outcome).inc(tokens)
        self._counter(names.PROMPT_TOKENS).inc(sum(ledger.values()))

    def ready(self, path: Path, seconds: float) -> None:
        self._histogram(names.READY_SECONDS, path).observe(seconds)

    def lost(self, choice: Choice, seconds: float) -> None:
        self._counter(names.LOST_SECONDS, choice).inc(seconds)

    def saved(self, seconds: float) -> None:
        self._counter(names.SAVED_SECONDS).inc(seconds)

    def saving(self, saving: Saving | None) -> None:
        if saving is None:
            # A new trial has begun: what the old one said is not about it.
            self._gauge(names.SAVING_RATIO).clear()
            return
        self._gauge(names.SAVING_RATIO, Bound.ESTIMATE).set(saving.share)
        self._gauge(names.SAVING_RATIO, Bound.LOW).set(saving.low)
        self._gauge(names.SAVING_RATIO, Bound.HIGH).set(saving.high)

    def fell_back(self, cause: Outcome) -> None:
        self._counter(names.FALLBACKS, cause).inc()

    def failed(self, part: Part) -> None:
        self._counter(names.FAILURES, part).inc()

    def probed(self, tier: Kind, seconds: float, *, blocks: int, found: int) -> None:
        self._histogram(names.PROBE_SECONDS, tier).observe(seconds)
        self._counter(names.PROBED_BLOCKS, tier).inc(blocks)
        self._counter(names.FOUND_BLOCKS, tier).inc(found)

    def loaded(self, tier: Kind, seconds: float, moved_bytes: int) -> None:
        self._histogram(names.LOAD_SECONDS, tier).observe(seconds)
        self._histogram(names.LOAD_BYTES, tier).observe(moved_bytes)
        self._counter(names.READ_BYTES, tier).inc(moved_bytes)

    def stored(self, tier: Kind, seconds: float, moved_bytes: int) -> None:
        self._histogram(names.STORE_SECONDS, tier).observe(seconds)
        self._histogram(names.STORE_BYTES, tier).observe(moved_bytes)
        self._counter(names.PUBLISHED_BYTES, tier).inc(moved_bytes)

    def refused(self, tier: Kind, blocks: int) -> None:
        self._counter(names.REFUSED_BLOCKS, tier).inc(blocks)

    def never_read(self, tier: Kind, dropped_bytes: int) -> None:
        self._counter(names.NEVER_READ_BYTES, tier).inc(dropped_bytes)

    def tier_state(self, tier: Kind, *, up: bool, backoff_seconds: float = 0.0) -> None:
        self._gauge(names.TIER_UP, tier).set(1 if up else 0)
        self._gauge(names.TIER_BACKOFF_SECONDS, tier).set(backoff_seconds)

    def tier_usage(self, tier: Kind, *, capacity_bytes: int | None, used_bytes: int | None) -> None:
        for metric, size in (
            (names.TIER_CAPACITY_BYTES, capacity_bytes),
            (names.TIER_USED_BYTES, used_bytes),
        ):
            if size is not None:
                self._gauge(metric, tier).set(size)
            else:
                self._gauge(metric).remove(tier)

    def in_flight(self, *, loads: int, load_cap: int, stores: int) -> None:
        self._gauge(names.LOADS_IN_FLIGHT).set(loads)
        self._gauge(names.LOAD_CAP).set(load_cap)
        self._gauge(names.STORES_IN_FLIGHT).set(stores)

    def step(self, step: StepKind, tokens: int, seconds: float) -> None:
        self._histogram(names.STEP_SECONDS, step).observe(seconds)
        if step is StepKind.PREFILL:
            self._counter(names.COMPUTED_TOKENS).inc(tokens)

    def mode(self, mode: Mode) -> None:
        for other in Mode:
            self._gauge(names.MODE, other).set(1 if other is mode else 0)

    def render(self) -> bytes:
        return generate_latest(_Listed(self._registry))

    def _register(self, metric: Metric) -> None:
        match metric.kind:
            case "counter":
                self._counters[metric.name] = Counter(
                    metric.name, metric.help, metric.labels, registry=self._registry
                )
            case "gauge":
                self._gauges[metric.name] = Gauge(
                    metric.name, metric.help, metric.labels, registry=self._registry
                )
            case "histogram":
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets
                )

    def _counter(self, metric: Metric, *labels: str) -> Counter:
        family = self._counters[metric.name]
        return family.labels(*labels) if labels else family

    def _gauge(self, metric: Metric, *labels: str) -> Gauge:
        family = self._gauges[metric.name]
        return family.labels(*labels) if labels else family

    def _histogram(self, metric: Metric, *labels: str) -> Histogram:
        family = self._histograms[metric.name]
        return family.labels(*labels) if labels else family


class _Listed(Collector):
    """The registry without the `_created` samples that the client adds: they are in no list of names, and
    leaving them out by the client's own switch would do so for the whole process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
