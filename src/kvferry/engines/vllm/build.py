"""Builds both halves of the connector from the engine's configuration and the user's settings.

Owns what has to be known before anything may be shared: that the settings are safe, that every KV cache group
can be mapped, that the weights can be told apart. Where not, it says why, and nothing is built.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
import vllm

from ... import __version__
from ...cache.machine import Cache
from ...clock import MonotonicClock
from ...config import Config, resolve_secret
from ...errors import EngineError
from ...executors.aliens import Aliens
from ...executors.membership import Membership
from ...executors.shelf import Shelf
from ...keys.namespace import Manifest
from ...keys.pool import secret_of
from ...telemetry.metrics import Metrics
from ...telemetry.spans import open_spans
from ...telemetry.traces import RecordedTraces
from ..assembly import (
    cache_settings,
    publication_of,
    save_profile,
    sink_of,
    start_from_profile,
    thread_executor,
)
from ..ferry import Ferry
from .audit import tolerance_of
from .auditing import Audits
from .checks import ALLOW_FAIL, Finding, Role, check_engine, check_transfer, read_extra
from .identity import engine_of, kv_dtype_of, namespaces
from .kept import Kept
from .mirror import HostChanges, MirroredTier
from .ordering import OrderingExecutor
from .orders import GroupShape, Hello
from .pages import Pages
from .parts import PiecedTier, PieceKeys
from .runfolder import begin_run
from .schedulerside import SchedulerSide
from .shelves import Fittings, leave_fittings, take_fittings
from .spaces import EngineSpaces, member_names
from .workerside import WorkerSide

__all__ = ["Terms", "build_scheduler_side", "build_worker_side", "read_terms", "say_hello"]

log = logging.getLogger(__name__)

_MAPPED = ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec")
"""Kinds of KV cache whose blocks hold the KV of their own tokens and of no others."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one engine's connector works under."""

    config: Config
    role: Role
    replica: str
    engine_id: str
    ranks: int
    one_process: bool
    block_tokens: int
    kv_dtype: str
    replicas: tuple[int, ...]
    """For each KV cache group, how many neighbouring ranks hold the same bytes."""
    windowed: tuple[int, ...]
    """Groups that let go of blocks behind a window."""
    layers: tuple[tuple[str, ...], ...]
    """Layer names of each group."""
    findings: tuple[Finding, ...]

    @property
    def why_off(self) -> str:
        """Why the connector must not be used; empty when it may."""
        return "; ".join(str(finding) for finding in self.findings if finding.disables)


def read_terms(vllm_config: Any, kv_cache_config: Any) -> Terms:
    """Read and check everything that both halves need. Raises ConfigError for settings of ours."""
    transfer = vllm_config.kv_transfer_config
    document = {
        "kv_connector": "FerryConnector",
        "kv_connector_module_path": "kvferry.engines.vllm.connector",
        "kv_role": transfer.kv_role,
        "kv_load_failure_policy": transfer.kv_load_failure_policy,
        "kv_connector_extra_config": transfer.kv_connector_extra_config,
    }
    config, _ = read_extra(transfer.kv_connector_extra_config)
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    findings = check_transfer(document)
    findings += check_engine(
        hash_algorithm=str(cache.prefix_caching_hash_algo),
        prefix_caching=bool(cache.enable_prefix_caching),
        speculative=vllm_config.speculative_config is not None,
        context_parallel=int(getattr(parallel, "decode_context_parallel_size", 1) or 1)
        * int(getattr(parallel, "prefill_context_parallel_size", 1) or 1),
    )
    groups = kv_cache_config.kv_cache_groups
    size = int(kv_cache_config.hash_block_size or cache.block_size)
    findings += _unmapped(groups, size, config, transfer.kv_connector_extra_config)
    ranks = int(parallel.world_size)
    one_process = ranks == 1 and parallel.distributed_executor_backend in (None, "uni")
    alike = int(getattr(kv_cache_config, "kv_tp_replicas", 1) or 1)
    return Terms(
        config=config,
        role=Role.of(transfer.kv_role),
        replica=config.replica or f"{socket.gethostname()}-{os.getpid()}",
        engine_id=str(transfer.engine_id),
        ranks=ranks,
        one_process=one_process,
        block_tokens=size,
        kv_dtype=kv_dtype_of(vllm_config),
        replicas=tuple(ranks if "MLA" in _kind(group) else max(1, min(alike, ranks)) for group in groups),
        windowed=tuple(i for i, group in enumerate(groups) if _kind(group).startswith("SlidingWindow")),
        layers=tuple(tuple(group.layer_names) for group in groups),
        findings=tuple(findings),
    )


def say_hello(terms: Terms, vllm_config: Any, pages: Pages) -> Hello:
    """What this rank tells the scheduler's side of its pages."""
    context = vllm_config.compilation_config.static_forward_context
    shapes = []
    for group, names in zip(pages.groups, terms.layers, strict=True):
        backends = sorted({_backend(context[name]) for name in names if name in context})
        shapes.append(GroupShape(group.block_bytes, group.fingerprint, ",".join(backends)))
    return Hello(tuple(shapes))


def build_worker_side(terms: Terms, rank: int, pages: Pages) -> tuple[WorkerSide, Metrics]:
    """This rank's half, and the metrics of its process; opens its tiers."""
    clock = MonotonicClock()
    config = terms.config
    changes = HostChanges() if config.host_memory and not terms.one_process else None
    if changes is not None:
        # The setting is the replica's: its workers share it.
        config = msgspec.structs.replace(config, host_memory=config.host_memory // terms.ranks)
    fittings = take_fittings(terms.engine_id, lambda: Fittings(config, clock, changes=changes))
    worker = WorkerSide(
        config=config,
        changes=changes,
        shelf=fittings.shelf,
        secret=secret_of(terms.config.tenant, resolve_secret(terms.config)),
        pages=pages,
        clock=clock,
        replica=f"{terms.replica}/{rank}" if rank else terms.replica,
        rank=rank,
        kv_dtype=terms.kv_dtype,
        stores=all(rank % alike == 0 for alike in terms.replicas),
        close_shelf=lambda: leave_fittings(terms.engine_id),
    )
    return worker, fittings.metrics


def build_scheduler_side(
    terms: Terms, vllm_config: Any, hellos: Sequence[Hello], kept: Kept
) -> SchedulerSide:
    """The scheduler's half. Raises EngineError where the engine's blocks cannot be named."""
    for hello in hellos:
        if hello.why_not:
            raise EngineError(hello.why_not)
    config, clock = terms.config, MonotonicClock()
    if not terms.role.stores:
        config = msgspec.structs.replace(config, publish="never")
    engine = engine_of(vllm_config, config, terms.block_tokens)
    shapes = [hello.groups for hello in hellos]
    classes = dict.fromkeys((config.data_class, *config.shareable_data_classes))
    spaces_of = {name: namespaces(engine, config, name, shapes, terms.replicas) for name in classes}
    secret = secret_of(config.tenant, resolve_secret(config))
    mirror = MirroredTier() if config.host_memory and not terms.one_process else None
    own = config if mirror is None else msgspec.structs.replace(config, host_memory=0)
    fittings = take_fittings(terms.engine_id, lambda: Fittings(own, clock, mirror=mirror))
    shelf = fittings.shelf
    block_bytes = sum(
        shape.block_bytes
        for rank, groups in enumerate(shapes)
        for shape, alike in zip(groups, terms.replicas, strict=True)
        if rank % alike == 0
    )
    settings = cache_settings(
        config,
        shelf.outcomes,
        block_tokens=terms.block_tokens,
        bytes_per_token=max(1, block_bytes // terms.block_tokens),
        ranks=terms.ranks,
    )
    cache = Cache(settings, publication_of(config))
    start_from_profile(config, cache, shelf)
    membership = None
    aliens = None
    if shelf.pool is not None:
        members = {
            name: namespace
            for data_class, pieces in spaces_of.items()
            for name, namespace in member_names(data_class, pieces).items()
        }
        membership = Membership(
            shelf.pool,
            members,
            Manifest(
                engine=f"vllm {vllm.__version__}, torch {torch.__version__}",
                connector=f"kvferry {__version__} FerryConnector",
                kvferry=__version__,
                chat_template="",
            ),
            # No prompt of its own is computed here: names and layouts are compared, and numbers where a
            # request computes what the pool holds as well (`audit`).
            np.zeros((1, 1), dtype=np.float32),
            tolerance=0.0,
            timeout_seconds=max(1.0, config.timeouts.connect),
        )
        fittings.membership = membership
        ours = {namespace.digest() for namespace in members.values()}
        aliens = Aliens(secret, partial(_others, membership, ours), clock.now)
    pieces = PieceKeys()
    spaces = EngineSpaces(spaces_of, config.data_class, secret, membership, pieces)
    looked = [PiecedTier(tier, pieces) for tier in shelf.tiers]
    ordering: list[OrderingExecutor] = []

    def executor(deliver: Any) -> OrderingExecutor:
        lookups = thread_executor(
            config,
            Shelf(list(looked), shelf.kinds),
            lambda done: ordering[0].heard(done),
            clock=clock,
            replica=terms.replica,
            aliens=aliens,
            codec=None,
        )
        ordering.append(OrderingExecutor(lookups, deliver, terms.ranks))
        return ordering[0]

    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    begin_run(terms.config, {name: value for name, value in extra.items() if name != ALLOW_FAIL})
    base = spaces_of[config.data_class][0][0].digest().hex()
    ferry = Ferry(
        config=config,
        cache=cache,
        shelf=shelf,
        spaces=spaces,
        executor=executor,
        clock=clock,
        metrics=fittings.metrics,
        replica=terms.replica,
        chunk_tokens=int(vllm_config.scheduler_config.max_num_batched_tokens),
        sink=sink_of(config),
        traces=RecordedTraces(open_spans(required=True), shelf.kinds) if config.spans else None,
        on_close=lambda cache: save_profile(config, cache, shelf, replica=terms.replica, namespace=base),
        close_shelf=lambda: leave_fittings(terms.engine_id),
    )
    fittings.ferry = ferry
    if membership is not None:
        membership.start()
        membership.wait(config.timeouts.connect * 2)
    return SchedulerSide(
        ferry=ferry,
        executor=ordering[0],
        spaces=spaces,
        clock=clock,
        block_tokens=terms.block_tokens,
        loads=terms.role.loads,
        windowed=terms.windowed,
        kinds=shelf.kinds,
        mirror=mirror,
        audits=Audits(spaces, tolerance_of(terms.kv_dtype), terms.ranks, kept),
        kept=kept,
    )


def _others(membership: Membership, own: set[bytes], ours: bytes) -> Mapping[bytes, str]:
    """Namespaces that are nobody's here; an adapter's has no manifest to be compared with."""
    if ours not in own:
        return {}
    return {digest: fields for digest, fields in membership.others(ours).items() if digest not in own}


def _unmapped(groups: Sequence[Any], size: int, config: Config, extra: Mapping[str, Any]) -> list[Finding]:
    findings = []
    for number, group in enumerate(groups):
        kind = _kind(group)
        if kind not in _MAPPED:
            what = f"KV cache group {number} is {kind}, which kvferry does not carry yet"
            findings.append(Finding(what, "serve this model without the connector"))
        elif int(group.kv_cache_spec.block_size) != size:
            what = (
                f"KV cache group {number} has blocks of {group.kv_cache_spec.block_size} tokens, not {size}"
            )
            findings.append(Finding(what, "write --block-size so that all groups have the same"))
    if "block_tokens" in extra and config.block_tokens != size:
        what = f"block_tokens is {config.block_tokens}, and the engine's blocks have {size} tokens"
        findings.append(Finding(what, f"leave block_tokens out, or write --block-size {config.block_tokens}"))
    return findings


def _kind(group: Any) -> str:
    return type(group.kv_cache_spec).__name__


def _backend(layer: Any) -> str:
    backend = getattr(layer, "attn_backend", None)
    name = getattr(backend, "get_name", None)
    return str(name()) if callable(name) else type(layer).__name__
