"""kvferry's metrics in vLLM's own exposition: the same families, recorded into the stats that vLLM collects.

A tier runs in the scheduler's process; vLLM fetches its stats there and serves them at /metrics beside its
own, with its engine label. So nothing is kept here that a port of the tier's own could show.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from ....gate.facts import Arm, Reason
from ....gate.trial import Saving
from ....outcomes import Outcome
from ....store.tier import Kind
from ....telemetry import names
from ....telemetry.metrics import Metrics
from ....telemetry.names import Bound, Choice, Metric, Mode, Part, Path, StepKind

__all__ = ["StatsMetrics", "definitions"]

_MOST_SAMPLES = 10_000
"""Of one histogram between two fetches; more are left out."""


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """What vLLM has to know of each family before it is recorded."""
    return {metric.name: _defined(metric) for metric in names.METRICS}


def _defined(metric: Metric) -> OffloadingMetricMetadata:
    match metric.kind:
        case "counter":
            return OffloadingCounterMetadata(metric.help, metric.labels)
        case "gauge":
            return OffloadingGaugeMetadata(metric.help, metric.labels)
        case "histogram":
            return OffloadingHistogramMetadata(metric.help, metric.labels, buckets=metric.buckets)


class StatsMetrics(Metrics):
    """Records until vLLM fetches. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = OffloadingConnectorStats()
        self._samples: dict[str, int] = {}

    def take(self) -> OffloadingConnectorStats | None:
        """What was recorded since the last call; None for nothing."""
        with self._lock:
            stats, self._stats = self._stats, OffloadingConnectorStats()
            self._samples = {}
        return None if stats.is_empty() else stats

    def decided(self, choice: Choice, reason: Reason, arm: Arm) -> None:
        self._count(names.DECISIONS, 1, choice, reason, arm)

    def booked(self, ledger: Mapping[Outcome, int]) -> None:
        for outcome, tokens in ledger.items():
            self._count(names.LEDGER_TOKENS, tokens, outcome)
        self._count(names.PROMPT_TOKENS, sum(ledger.values()))

    def ready(self, path: Path, seconds: float) -> None:
        self._observe(names.READY_SECONDS, seconds, path)

    def lost(self, choice: Choice, seconds: float) -> None:
        self._count(names.LOST_SECONDS, seconds, choice)

    def saved(self, seconds: float) -> None:
        self._count(names.SAVED_SECONDS, seconds)

    def saving(self, saving: Saving | None) -> None:
        # A gauge cannot be taken back here: 0 in all of them says that nothing is known.
        share, low, high = (saving.share, saving.low, saving.high) if saving is not None else (0.0, 0.0, 0.0)
        self._set(names.SAVING_RATIO, share, Bound.ESTIMATE)
        self._set(names.SAVING_RATIO, low, Bound.LOW)
        self._set(names.SAVING_RATIO, high, Bound.HIGH)

    def fell_back(self, cause: Outcome) -> None:
        self._count(names.FALLBACKS, 1, cause)

    def failed(self, part: Part) -> None:
        self._count(names.FAILURES, 1, part)

    def probed(self, tier: Kind, seconds: float, *, blocks: int, found: int) -> None:
        self._observe(names.PROBE_SECONDS, seconds, tier)
        self._count(names.PROBED_BLOCKS, blocks, tier)
        self._count(names.FOUND_BLOCKS, found, tier)

    def loaded(self, tier: Kind, seconds: float, moved_bytes: int) -> None:
        self._observe(names.LOAD_SECONDS, seconds, tier)
        self._observe(names.LOAD_BYTES, moved_bytes, tier)
        self._count(names.READ_BYTES, moved_bytes, tier)

    def stored(self, tier: Kind, seconds: float, moved_bytes: int) -> None:
        self._observe(names.STORE_SECONDS, seconds, tier)
        self._observe(names.STORE_BYTES, moved_bytes, tier)
        self._count(names.PUBLISHED_BYTES, moved_bytes, tier)

    def refused(self, tier: Kind, blocks: int) -> None:
        self._count(names.REFUSED_BLOCKS, blocks, tier)

    def never_read(self, tier: Kind, dropped_bytes: int) -> None:
        self._count(names.NEVER_READ_BYTES, dropped_bytes, tier)

    def tier_state(self, tier: Kind, *, up: bool, backoff_seconds: float = 0.0) -> None:
        self._set(names.TIER_UP, 1 if up else 0, tier)
        self._set(names.TIER_BACKOFF_SECONDS, backoff_seconds, tier)

    def tier_usage(self, tier: Kind, *, capacity_bytes: int | None, used_bytes: int | None) -> None:
        for metric, size in (
            (names.TIER_CAPACITY_BYTES, capacity_bytes),
            (names.TIER_USED_BYTES, used_bytes),
        ):
            if size is not None:
                self._set(metric, size, tier)

    def in_flight(self, *, loads: int, load_cap: int, stores: int) -> None:
        self._set(names.LOADS_IN_FLIGHT, loads)
        self._set(names.LOAD_CAP, load_cap)
        self._set(names.STORES_IN_FLIGHT, stores)

    def step(self, step: StepKind, tokens: int, seconds: float) -> None:
        self._observe(names.STEP_SECONDS, seconds, step)
        if step is StepKind.PREFILL:
            self._count(names.COMPUTED_TOKENS, tokens)

    def mode(self, mode: Mode) -> None:
        for other in Mode:
            self._set(names.MODE, 1 if other is mode else 0, other)

    def render(self) -> bytes:
        return b"# the metrics of a tier are on vLLM's own page\n"

    def _count(self, metric: Metric, by: float, *labels: str) -> None:
        with self._lock:
            self._stats.increase_counter(metric.name, by, _plain(labels))

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            self._stats.set_gauge(metric.name, value, _plain(labels))

    def _observe(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            seen = self._samples.get(metric.name, 0)
            if seen < _MOST_SAMPLES:
                self._samples[metric.name] = seen + 1
                self._stats.observe_histogram(metric.name, value, _plain(labels))


def _plain(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Label values cross to vLLM's front end, which knows no enumeration of ours."""
    return tuple(map(str, labels))
