"""A connector with a gate before it: where vLLM's calls meet the gate, and how they reach the inner one.

Owns the translation between vLLM's words and the gate's, and the rule that the inner connector comes first:
whatever the gate does, fails at or refuses, the other one gets every call that it would get alone. Metadata
passes unwrapped; statistics of both travel side by side. The gate lives in the scheduler's process only; the
workers' side merely forwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ....config import Loaded
from ....errors import ConfigError, KvferryError
from ....store.tier import Kind
from .attended import Attended, attend, metrics_without_a_gate
from .gate import ForeignGate
from .inner import Inner
from .settings import inner_extra, read_settings

if TYPE_CHECKING:
    from ..stats import Feed

__all__ = ["OWN", "Gated", "finished_all_groups"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_ABORTED = ("FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED")
# vLLM's words for where cached tokens came from; what it cannot say is a pool to us.
_KINDS = {"host": Kind.HOST, "disk": Kind.DISK, "p2p": Kind.P2P}


class Gated:
    """What a gated class does itself; `forwarding.gated_class` adds the rest of vLLM's contract."""

    behind: ClassVar[Inner]
    contract: ClassVar[Any]

    inner: Any
    """The connector behind the gate."""
    _feed: Feed | None = None
    """What carries the gate's metrics to vLLM's page; on the scheduler's side only."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.contract.__init__(self, vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        loaded = read_settings(extra)
        theirs = self.behind.config(vllm_config)
        self.inner = self.behind.resolve(extra)(theirs, role, kv_cache_config)
        self._asynchronous: dict[str, bool] = {}
        self._attended = None
        if role.name == "SCHEDULER":
            self._attended = self._attend(loaded, vllm_config, kv_cache_config)
            self._show(self._attended)

    def __getattr__(self, name: str) -> Any:
        # What the inner connector offers beyond the contract stays in reach.
        if name.startswith("_") or name == "inner":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.inner, name)

    @property
    def gate(self) -> ForeignGate | None:
        """The gate; None on the workers' side, and after it has failed."""
        return None if self._attended is None else self._attended.gate

    # -- both sides -------------------------------------------------------------------------------------

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Bound on both: the engine asks the outer one, the work is done by the inner."""
        self.contract.bind_connector_metadata(self, connector_metadata)
        self.inner.bind_connector_metadata(connector_metadata)

    def clear_connector_metadata(self) -> None:
        """Cleared on both."""
        self.contract.clear_connector_metadata(self)
        self.inner.clear_connector_metadata()

    def get_kv_connector_stats(self) -> Any:
        """Of both. On the scheduler's side the engine asks once for every step that is done."""
        inner = self.inner.get_kv_connector_stats()
        self._tell(lambda gate: gate.step_ended())
        gate = None if self._feed is None else self._feed.take()
        if inner is None and gate is None:
            return None
        from .shown import GatedStats

        return GatedStats.of(gate, inner)

    def shutdown(self) -> Any:
        """Both end; what was learned is kept where the settings say so."""
        if self._attended is not None:
            self._attended.close()
            self._attended = None
        if self._feed is not None:
            self._feed.close()
        return self.inner.shutdown()

    # -- the scheduler's side ---------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """A request begins."""
        self.inner.on_new_request(request)
        self._tell(
            lambda gate: gate.arrive(
                request.request_id, request, request.num_prompt_tokens, request.kv_transfer_params
            )
        )

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The inner connector's offer, whole, or nothing of it."""
        rid = request.request_id
        self._tell(lambda gate: gate.asked(rid))
        found, asynchronous = self.inner.get_num_new_matched_tokens(request, num_computed_tokens)
        answer = self._ask(lambda gate: gate.answer(rid, num_computed_tokens, found), found)
        if not answer:
            return answer, False
        self._asynchronous[rid] = asynchronous
        return answer, asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """After a veto the inner connector hears 0 here, and lets go of what it holds for the request."""
        self.inner.update_state_after_alloc(request, blocks, num_external_tokens)
        rid = request.request_id
        asynchronous = self._asynchronous.pop(rid, False)

        def tell(gate: ForeignGate) -> None:
            ids: tuple[int, ...] = ()
            sources: Mapping[Kind, int] = {}
            if num_external_tokens > 0:
                groups = blocks.get_block_ids()
                # With several groups the numbers overlap, and failures are reported by request instead.
                ids = tuple(groups[0]) if len(groups) == 1 else ()
                sources = _sources(self.inner.get_external_cache_hit_sources(request, num_external_tokens))
            gate.admitted(rid, num_external_tokens, asynchronous=asynchronous, blocks=ids, sources=sources)

        self._tell(tell)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """The inner connector's own metadata, unwrapped."""
        meta = self.inner.build_connector_meta(scheduler_output)
        self._tell(lambda gate: gate.step_began(scheduler_output.num_scheduled_tokens))
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """The workers' report goes to both."""
        self.inner.update_connector_output(connector_output)
        self._tell(
            lambda gate: gate.heard(
                connector_output.finished_recving or (),
                connector_output.failed_recving or (),
                connector_output.invalid_block_ids or (),
            )
        )

    def has_pending_push_work(self) -> bool:
        """Whether the engine has to make a step though no request is left: metrics travel with steps too."""
        pending: bool = self.inner.has_pending_push_work()
        return pending or (self._feed is not None and self._feed.owes)

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        """The inner connector says whether the blocks stay; the gate closes the books."""
        answer = self.inner.request_finished(request, block_ids)
        self._finished(request)
        return answer

    # -- where no instance exists -----------------------------------------------------------------------

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Any:
        """What the inner connector requires."""
        inner = cls.behind.resolve(vllm_config.kv_transfer_config.kv_connector_extra_config)
        return inner.get_required_kvcache_layout(cls.behind.config(vllm_config))

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> Any:
        """What the inner connector requires."""
        return cls.behind.resolve(extra_config).requires_piecewise_for_cudagraph(inner_extra(extra_config))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Both parts' statistics; the inner one's are left out until a configuration has named its module."""
        from .shown import GatedStats

        found = cls.behind.found
        return GatedStats.read(data or {}, None if found is None else found.build_kv_connector_stats)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        """The inner connector's metrics, and the gate's beside them."""
        from .shown import GatedMetrics

        inner = cls.behind.resolve(vllm_config.kv_transfer_config.kv_connector_extra_config)
        terms = (metric_types, labelnames, per_engine_labelvalues)
        theirs = inner.build_prom_metrics(cls.behind.config(vllm_config), *terms)
        return GatedMetrics(theirs, vllm_config, *terms)

    # -- inside -----------------------------------------------------------------------------------------

    def _attend(self, loaded: Loaded, vllm_config: Any, kv_cache_config: Any) -> Attended | None:
        source = getattr(type(self.inner), "_cache_hit_source", None)
        kind = _KINDS.get(str(getattr(source, "value", source)), Kind.POOL)
        try:
            return attend(loaded.config, vllm_config, kv_cache_config, connector=self.behind.name, kind=kind)
        except ConfigError:
            raise
        except KvferryError as error:
            if loaded.config.strict:
                raise
            _log.error("%s runs without its gate: %s", self.behind.name, error)
            return None

    def _show(self, attended: Attended | None) -> None:
        from ..stats import Feed
        from .shown import PROCESS

        if attended is None:
            self._feed = Feed(PROCESS, metrics_without_a_gate().render)
            return
        self._feed = Feed(PROCESS, attended.switches.metrics)
        attended.told = self._feed.poke

    def _finished(self, request: Any) -> None:
        self._asynchronous.pop(request.request_id, None)
        aborted = request.status.name in _ABORTED
        self._tell(lambda gate: gate.finish(request.request_id, aborted=aborted))

    def _tell(self, call: Callable[[ForeignGate], None]) -> None:
        self._ask(call, None)

    def _ask(self, call: Callable[[ForeignGate], _T], otherwise: _T) -> _T:
        """The gate's answer; `otherwise` without a gate, and in the one call that finds it broken."""
        attended = self._attended
        if attended is None:
            return otherwise
        try:
            return call(attended.gate)
        except Exception:  # whatever it is, the engine must go on
            _log.exception("the gate has failed; %s goes on without it", self.behind.name)
            self._attended = None
            attended.switches.broke()
            attended.told()
            try:
                attended.close()
            except Exception:
                _log.exception("the failed gate could not be closed")
            return otherwise


def finished_all_groups(self: Gated, request: Any, block_ids: tuple[list[int], ...]) -> Any:
    """`request_finished_all_groups`, for inner connectors that support several groups of KV blocks."""
    answer = self.inner.request_finished_all_groups(request, block_ids)
    self._finished(request)
    return answer


def _sources(by_source: Mapping[Any, int]) -> dict[Kind, int]:
    kinds: dict[Kind, int] = {}
    for source, tokens in by_source.items():
        kind = _KINDS.get(str(getattr(source, "value", source)), Kind.POOL)
        kinds[kind] = kinds.get(kind, 0) + tokens
    return kinds


OWN = frozenset(name for name in vars(Gated) if not name.startswith("_")) - {"gate", "inner"}
"""The members of vLLM's contract that are not merely forwarded."""
