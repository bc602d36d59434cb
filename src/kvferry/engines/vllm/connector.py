"""FerryConnector: vLLM's KV connector that carries blocks only when the crossing beats recompute.

Owns vLLM's interface and nothing else: each call goes to one of the two halves, and an error in either ends
the sharing, never the serving. Loads are always asynchronous: the engine names blocks as cached only when
they have arrived, so that a failed load leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import RequestStatus

from ...config import RequestFields, parse_request_fields
from ...errors import ConfigError, EngineError, KvferryError
from ...store.tier import Kind
from ...telemetry.metrics import Metrics, open_metrics
from ...telemetry.names import Mode, Part
from ..cacheside import Adapter
from .build import Terms, build_scheduler_side, build_worker_side, read_terms, say_hello
from .identity import adapter_version
from .kept import Kept
from .orders import Hello, Orders, Report
from .pages import Pages
from .schedulerside import SchedulerSide
from .stats import Feed, FerryStats, ShownMetrics
from .switched import open_switches
from .workerside import Results, WorkerSide

__all__ = ["FerryConnector"]

log = logging.getLogger("vllm.kvferry")
"""Under vLLM's own logger, which is the one that an operator sees."""

T = TypeVar("T")

_SOURCES = {
    Kind.HOST: CacheHitSource.HOST,
    Kind.DISK: CacheHitSource.DISK,
    Kind.P2P: CacheHitSource.P2P,
    Kind.POOL: CacheHitSource.EXTERNAL_UNSPECIFIED,
}


class FerryConnector(KVConnectorBase_V1, SupportsHMA):
    """One half of the connector; vLLM makes one for the scheduler and one for each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._pages: Pages | None = None
        self._metrics = Metrics()
        self._hello: Hello | None = None
        """What this rank tells the scheduler's half; also that it cannot be used, but for settings alone."""
        self._results = Results()
        self._report: Report | None = None
        self._manager: Any = None
        self._adapters: dict[str, Adapter] = {}
        self._kept: Kept | None = None
        self._chosen: tuple[str, int] = ("", 0)
        """The request that a load was chosen for last, and the tokens that the engine held of it."""
        self._promised: dict[str, tuple[int, ...]] = {}
        """Requests that wait for loads whose orders have not left yet, and the blocks of these."""
        self._cancels: tuple[int, ...] = ()
        """Publications of a scheduler's half that has failed."""
        self.why_off = ""
        """Why this engine serves without the shared cache; empty while it has one."""
        self._terms: Terms | None = None
        self._feed: Feed | None = None
        self._closing = contextlib.ExitStack()
        try:
            terms = read_terms(vllm_config, kv_cache_config)
        except ConfigError as error:
            # A setting that cannot be read is the user's to mend: to serve without it would hide it.
            raise EngineError(f"kv_connector_extra_config: {error}") from error
        for finding in terms.findings:
            log.warning("kvferry: %s", finding)
        if terms.why_off:
            self._turn_off(terms.why_off, strict=terms.config.strict)
        else:
            self._terms = terms
            self._hello = Hello((), "the worker has not registered its KV cache")

    # -- the worker's half -------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The rank's paged KV cache exists."""
        terms = self._terms
        if terms is None:
            return

        def register() -> None:
            self._pages = Pages.of(kv_caches, terms.layers, int(self._kv_cache_config.num_blocks))
            self._hello = say_hello(terms, self._vllm_config, self._pages)
            rank = int(self._vllm_config.parallel_config.rank)
            self._worker, self._metrics = build_worker_side(terms, rank, self._pages)
            if not terms.one_process:
                self._feed = Feed(f"worker-{rank}", self._metrics.render)

        try:
            register()
        except Exception as error:  # whatever it is, the engine must start
            why = _why(error)
            self._hello = Hello((), why)
            self._turn_off(why, strict=terms.config.strict)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """How this rank lays its blocks out."""
        return self._hello

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """This step's orders: loads may write to their blocks from now on."""
        super().bind_connector_metadata(connector_metadata)
        if isinstance(connector_metadata, Orders):
            self._with_worker(lambda worker: worker.begin_step(connector_metadata), None)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads began with the orders."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No pass reads blocks that are still being loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Whole blocks are published when a prompt is computed, not layer by layer."""

    def wait_for_save(self) -> None:
        """The pass has been made. Publications go on behind it, from blocks that the scheduler keeps."""
        self._with_worker(lambda worker: worker.end_pass(), None)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads that have ended since the last step."""
        self._results = self._with_worker(lambda worker: worker.results(), Results())
        return KVConnectorTransferResults(
            finished_recving=self._results.received, failed_recving=self._results.failed
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that those loads were to fill, and did not."""
        return self._results.bad_blocks

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What this rank tells the scheduler's half."""
        return self._with_worker(lambda worker: worker.report(), None)

    # -- the scheduler's half ----------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """The scheduler's cache manager."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._manager = kv_cache_manager

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Every rank has told how it lays its blocks out: the namespaces can be named."""
        terms = self._terms
        if terms is None:
            return
        hellos = [hello for _, hello in sorted(metadata.items()) if isinstance(hello, Hello)]
        try:
            self._kept = Kept(terms.ranks)
            self._scheduler = build_scheduler_side(terms, self._vllm_config, hellos, self._kept)
            self._scheduler.bind(self._manager)
            self._feed = Feed("scheduler", self._scheduler.metrics)
            self._closing.enter_context(open_switches(terms.config, self._scheduler.controls))
        except Exception as error:  # whatever it is, the engine must start
            built, self._scheduler = self._scheduler, None
            if built is not None:
                built.broke(str(error))
            self._turn_off(_why(error), strict=terms.config.strict)

    def on_new_request(self, request: Any) -> None:
        """A request has arrived: look its blocks up."""
        self._with_scheduler(lambda scheduler: self._arrive(scheduler, request), None)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens to load beyond those the engine holds; None to be asked again."""
        nothing: int | None = 0
        tokens = self._with_scheduler(
            lambda scheduler: scheduler.matched(request, num_computed_tokens), nothing
        )
        if tokens:
            self._chosen = (request.request_id, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks exist for the tokens to load."""
        ids = blocks.get_block_ids()
        if num_external_tokens > 0 and self._terms is not None:
            # From now on the engine waits for a load, whatever becomes of the half that is to order it.
            rid, local = self._chosen
            size = self._terms.block_tokens
            start = local // size if rid == request.request_id else 0
            end = -(-(start * size + num_external_tokens) // size)
            self._promised[request.request_id] = tuple(block for block in ids[0][start:end] if block)
        self._with_scheduler(lambda scheduler: scheduler.allocated(request, ids, num_external_tokens), None)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """The tokens to load by where they lie, in vLLM's words."""
        sources: dict[CacheHitSource, int] = {}
        if num_external_tokens:
            nothing: dict[Kind, int] = {}
            found = self._with_scheduler(lambda scheduler: scheduler.sources(request), nothing)
            for kind, tokens in found.items():
                source = _SOURCES[kind]
                sources[source] = sources.get(source, 0) + tokens
        return sources

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """This step's orders."""
        orders = self._with_scheduler(lambda scheduler: scheduler.planned(scheduler_output), Orders(0))
        if self._scheduler is not None:
            for rid in (*(run.rid for run in orders.loads), *(rid for rid, _ in orders.refusals)):
                self._promised.pop(rid, None)
        else:
            orders.refusals += self._promised.items()
            self._promised.clear()
            orders.cancels += self._cancels
            self._cancels = ()
        if self._kept is not None:
            self._kept.sent(orders)
        return orders

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers have answered."""
        report = connector_output.kv_connector_worker_meta
        known = report if isinstance(report, Report) else None
        if known is not None and self._kept is not None:
            self._kept.heard(known)
        self._with_scheduler(lambda scheduler: scheduler.reported(known), None)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request is over, before its blocks are freed."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request is over. Blocks that are being published are kept without holding up the request."""
        aborted = request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)
        params = self._with_scheduler(lambda scheduler: scheduler.finished(request, aborted=aborted), None)
        if self._feed is not None:
            self._feed.poke()
        return False, params

    def shutdown(self) -> None:
        """The engine stops."""
        scheduler, worker = self._scheduler, self._worker
        self._scheduler = self._worker = None
        self._closing.close()
        if self._feed is not None:
            self._feed.close()
        for half in (scheduler, worker):
            if half is not None:
                half.close()

    def has_pending_push_work(self) -> bool:
        """Whether the engine has to make a step though no request is left: orders travel with steps."""
        if self._with_scheduler(lambda scheduler: scheduler.pending, False):
            return True
        if self._kept is not None and self._kept.waits(time.monotonic()):
            return True
        return self._feed is not None and self._feed.owes

    def reset_cache(self) -> bool | None:
        """The engine's KV is void, its weights may have changed: nothing stored before may be read again."""
        return self._with_scheduler(lambda scheduler: scheduler.renew(), True)

    # -- metrics -----------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> FerryStats | None:
        """What is new on this half's page of metrics."""
        return self._feed.take() if self._feed is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> FerryStats:
        """The same in the serving process."""
        return FerryStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ShownMetrics:
        """What shows them on vLLM's page."""
        return ShownMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # -- inside ------------------------------------------------------------------------------------------

    def _arrive(self, scheduler: SchedulerSide, request: Any) -> None:
        try:
            fields = parse_request_fields(request.kv_transfer_params)
        except ConfigError as error:
            # One request's mistake: it is served without the cache, and told so in its record.
            scheduler.arrive(request, RequestFields(), None, barred=str(error))
            return
        fields = _limited(fields, request.kv_transfer_params)
        barred = "its prompt has embeddings" if request.prompt_embeds is not None else ""
        scheduler.arrive(request, fields, self._adapter(request.lora_request), barred=barred)

    def _adapter(self, lora: Any) -> Adapter | None:
        if lora is None:
            return None
        known = self._adapters.get(lora.lora_path)
        if known is None or known.name != lora.lora_name:
            known = Adapter(str(lora.lora_name), adapter_version(str(lora.lora_path)))
            self._adapters[lora.lora_path] = known
        return known

    def _with_scheduler(self, call: Callable[[SchedulerSide], T], otherwise: T) -> T:
        scheduler = self._scheduler
        if scheduler is None:
            return otherwise
        try:
            return call(scheduler)
        except Exception as error:  # whatever it is, the engine must go on
            log.exception("kvferry has failed; the engine goes on without it")
            self._scheduler = None
            if self._kept is not None:
                self._kept.abandon(time.monotonic())
                self._cancels = tuple(self._kept.publications())
            self.why_off = f"{type(error).__name__}: {error}"
            scheduler.broke(self.why_off)
            return otherwise

    def _with_worker(self, call: Callable[[WorkerSide], T], otherwise: T) -> T:
        worker = self._worker
        if worker is None:
            return otherwise
        try:
            return call(worker)
        except Exception:
            log.exception("kvferry: a step of the worker's half failed; loads in flight still end")
            self._metrics.failed(Part.CACHE)
            return otherwise

    def _turn_off(self, why: str, *, strict: bool) -> None:
        if strict:
            raise EngineError(f"strict is set, and kvferry cannot be used: {why}")
        self.why_off = why
        self._terms = None
        if self.role is KVConnectorRole.SCHEDULER:
            self._metrics = open_metrics(required=False)
            self._metrics.mode(Mode.OFF)
            self._metrics.failed(Part.CACHE)
            self._feed = Feed("scheduler", self._metrics.render)
        log.error("kvferry is off, this engine serves as plain vLLM: %s", why)


def _why(error: Exception) -> str:
    """Why there is no shared cache. What is ours to explain explains itself."""
    if isinstance(error, KvferryError):
        return str(error)
    log.error("kvferry could not be set up", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _limited(fields: RequestFields, params: Any) -> RequestFields:
    """With vLLM's own `max_load_tokens` of a request, where it names none of ours."""
    limit = params.get("max_load_tokens") if isinstance(params, dict) else None
    if (
        fields.max_load_tokens is not None
        or not isinstance(limit, int)
        or isinstance(limit, bool)
        or limit < 0
    ):
        return fields
    return msgspec.structs.replace(fields, max_load_tokens=limit)
