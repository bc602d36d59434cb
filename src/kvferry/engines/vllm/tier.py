"""FerryTier: kvferry's pool as a tier under vLLM's own offloading (a `SecondaryTierManager`).

vLLM's OffloadingConnector moves KV between the GPU and host memory; this tier carries chunks between that
host memory and a shared pool, when the crossing beats recompute. It is loaded by `module_path`. Owns vLLM's
interface and nothing else; an error in what lies behind it ends the sharing, never the serving.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ...errors import ConfigError, EngineError, KvferryError
from ...telemetry.names import Mode, Part
from .offloading.build import MEDIUM, Parts, build, read_settings
from .offloading.recorder import StatsMetrics, definitions
from .offloading.usage import UsageWatch
from .switched import open_switches

__all__ = ["FerryTier"]

log = logging.getLogger("vllm.kvferry")
"""Under vLLM's own logger, which is the one that an operator sees."""

T = TypeVar("T")


class FerryTier(SecondaryTierManager):
    """See `docs/vllm.md`. Every call comes on the scheduler's thread, and none waits."""

    medium: ClassVar[Medium] = MEDIUM
    cache_hit_source: ClassVar[CacheHitSource] = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        locality: str | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are kvferry's, as everywhere. Raises EngineError for one that cannot be read, and with
        `strict` for whatever keeps the tier from being used; without, it is off then, and says so.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._metrics = StatsMetrics()
        self._parts: Parts | None = None
        self._results: list[JobResult] = []
        self._closing = contextlib.ExitStack()
        self._watch: UsageWatch | None = None
        self.why_off = ""
        """Why nothing is shared; empty while this tier is in use."""
        try:
            self.locality = Locality(locality) if locality is not None else None
            config = read_settings(settings)
        except (ConfigError, ValueError) as error:
            raise EngineError(f"secondary_tiers, type {tier_type}: {error}") from error
        try:
            self._parts = build(
                offloading_spec, primary_kv_view, config, settings, self._metrics, self.locality
            )
        except KvferryError as error:
            if config.strict:
                raise EngineError(f"strict is set, and the tier cannot be used: {error}") from error
            self.why_off = str(error)
            self._metrics.failed(Part.CACHE)
            self._metrics.mode(Mode.OFF)
            log.error("kvferry is off, this engine offloads without it: %s", error)
            return
        self._closing.enter_context(open_switches(config, self._parts.side.controls))
        shelf = self._parts.shelf
        self._watch = UsageWatch(self._metrics, shelf.tiers, shelf.kinds, config.timeouts.connect)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """kvferry's metric families, for vLLM's exposition."""
        return definitions()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """A request; what this tier wants to be handed of it."""
        policy = self._with(lambda parts: parts.side.arrive(req_context), OffloadPolicy.CHUNK_LEVEL)
        return RequestOffloadingContext(policy)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT for a chunk that is worth bringing, RETRY while that is not known, MISS for all others."""
        return self._with(lambda parts: parts.side.lookup(key, req_context), LookupResult.MISS)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Fill these chunks of host memory."""
        self._job(job_metadata, lambda parts: parts.side.submit_load(job_metadata), success=False)

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Publish what is worth it of these chunks."""
        self._job(job_metadata, lambda parts: parts.side.submit_store(job_metadata), success=True)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that have ended; of a load that fell short, the chunks that are whole."""
        nothing: list[JobResult] = []
        ended = self._with(lambda parts: parts.side.finished_jobs(), nothing)
        results, self._results = [*self._results, *ended], []
        return results

    def has_pending_work(self) -> bool:
        """Whether vLLM has to keep stepping: until every job of this tier has been reported."""
        return bool(self._results) or (self._parts is not None and self._parts.side.jobs > 0)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """A request is over."""
        self._with(lambda parts: parts.side.finish(req_context), None)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """A step has been scheduled."""
        self._with(lambda parts: parts.side.schedule_ended(context), None)

    def drain_jobs(self) -> None:
        """Return when nothing of this tier touches host memory; at the jobs' own deadlines at the latest."""
        self._with(lambda parts: parts.side.drain(), None)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What was counted since the last call."""
        self._with(self._gauges, None)
        return self._metrics.take()

    def shutdown(self) -> None:
        """The engine stops: nothing touches host memory when this returns."""
        parts, self._parts = self._parts, None
        self._closing.close()
        if parts is not None:
            self._results += parts.side.end_jobs()
            self._close(parts)

    # -- inside ------------------------------------------------------------------------------------------

    def _with(self, call: Callable[[Parts], T], otherwise: T) -> T:
        parts = self._parts
        if parts is None:
            return otherwise
        try:
            return call(parts)
        except Exception as error:  # whatever it is, the engine must go on
            log.exception("kvferry has failed; this engine offloads without it")
            self.why_off = f"{type(error).__name__}: {error}"
            self._parts = None
            self._metrics.mode(Mode.OFF)
            parts.ferry.broke(self.why_off)
            try:
                self._results += parts.side.end_jobs()
            except Exception:
                log.exception("jobs of the failed tier could not be ended")
            self._close(parts)
            return otherwise

    def _job(self, job: TransferJob, submit: Callable[[Parts], None], *, success: bool) -> None:
        """Submit a job. Whatever happens it is reported once, or vLLM would keep its chunks for ever."""
        if self._parts is None:
            self._results.append(JobResult(job.job_id, success, transfer_time=0.0, transfer_bytes=0))
            return
        self._with(submit, None)
        if self._parts is None and all(result.job_id != job.job_id for result in self._results):
            self._results.append(JobResult(job.job_id, False, transfer_time=0.0, transfer_bytes=0))

    def _close(self, parts: Parts) -> None:
        if self._watch is not None:
            self._watch.close()
        try:
            parts.side.close()
        except Exception:
            log.exception("the tier could not be closed")

    def _gauges(self, parts: Parts) -> None:
        cache = parts.cache
        self._metrics.mode(Mode(cache.mode))
        self._metrics.saving(cache.trial.saving())
        budget = cache.flights.budget
        self._metrics.in_flight(
            loads=budget.in_flight, load_cap=budget.cap, stores=parts.side.stores_in_flight
        )
