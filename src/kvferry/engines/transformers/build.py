"""Builds kvferry for one embedded engine from its settings: tiers, namespaces, cache, executor, records."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import socket
from functools import partial

from ... import __version__
from ...cache.commands import Evicted
from ...cache.machine import Cache
from ...clock import Clock
from ...config import Config, resolve_secret
from ...errors import EngineError
from ...executors.aliens import Aliens
from ...executors.membership import Membership, Standing
from ...executors.shelf import open_shelf
from ...keys.namespace import Manifest, Namespace, canonical_text
from ...keys.pool import secret_of
from ...store.backoff import State
from ...store.codec import BlockLayout, bytes_per_token, kv_dtype_name, open_codec
from ...telemetry.accounts import mourner, observer
from ...telemetry.metrics import open_metrics
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
from ..spaces import NamedSpaces
from .runner import Runner

__all__ = ["block_layout", "build_ferry", "namespaces_of"]

log = logging.getLogger(__name__)

# Relative L2 distance of the probe's KV between replicas of one namespace. Measured between runs with other
# chunk sizes and thread counts: about 1e-6 in float32; 16-bit types are given the rounding of their mantissa.
_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2}


def build_ferry(config: Config, runner: Runner, clock: Clock, *, chunk_tokens: int) -> Ferry:
    """Everything between this engine and its pool. Raises ConfigError for settings that make no sense.

    A pool that does not answer is no error: the replica serves, and joins when the pool is there.
    """
    replica = config.replica or f"{socket.gethostname()}-{os.getpid()}"
    metrics = open_metrics(required=False)
    membership: Membership | None = None
    ferry: Ferry | None = None

    def pool_state(state: State) -> None:
        if state is State.UP and membership is not None:
            membership.rejoin()

    def deliver(evicted: Evicted) -> None:
        if ferry is not None:
            ferry.evicted(evicted)

    shelf = open_shelf(
        config, clock, partial(observer, metrics), pool_state, partial(mourner, metrics, deliver)
    )
    secret = secret_of(config.tenant, resolve_secret(config))
    spaces = namespaces_of(config, runner)
    settings = cache_settings(
        config,
        shelf.outcomes,
        block_tokens=config.block_tokens,
        bytes_per_token=bytes_per_token(config.codec, block_layout(runner)),
    )
    cache = Cache(settings, publication_of(config))
    aliens = None
    if shelf.pool is not None:
        membership = Membership(
            shelf.pool,
            spaces,
            _manifest(runner),
            runner.probe(),
            tolerance=_TOLERANCE[runner.layout.dtype_name],
            timeout_seconds=max(1.0, config.timeouts.connect),
        )
        aliens = Aliens(secret, membership.others, clock.now)
    digest = spaces[config.data_class].digest()
    if not start_from_profile(config, cache, shelf):
        _measure_prefill(cache, runner, clock, chunk_tokens)
    ferry = Ferry(
        config=config,
        cache=cache,
        shelf=shelf,
        spaces=NamedSpaces(spaces, secret, membership),
        executor=lambda deliver: thread_executor(
            config,
            shelf,
            deliver,
            clock=clock,
            replica=replica,
            aliens=aliens,
            codec=open_codec(config.codec, block_layout(runner)),
        ),
        clock=clock,
        metrics=metrics,
        replica=replica,
        chunk_tokens=chunk_tokens,
        sink=sink_of(config),
        traces=RecordedTraces(open_spans(required=True), shelf.kinds) if config.spans else None,
        on_close=lambda cache: save_profile(config, cache, shelf, replica=replica, namespace=digest.hex()),
    )
    if membership is not None:
        membership.start()
        membership.wait(config.timeouts.connect * 2)
        if config.strict:
            _insist(membership, ferry)
    return ferry


def _insist(membership: Membership, ferry: Ferry) -> None:
    """With `strict`, a replica that cannot use its pool does not start."""
    outside = {
        name: member.why
        for name, member in membership.members.items()
        if member.standing is not Standing.JOINED
    }
    if outside:
        ferry.close()
        reasons = "; ".join(f"data class {name}: {why}" for name, why in outside.items())
        raise EngineError(f"strict is set, and the pool cannot be used: {reasons}")


def namespaces_of(config: Config, runner: Runner) -> dict[str, Namespace]:
    """One namespace for each data class that may be shared, and for the replica's own."""
    raw = runner.namespace_fields()
    raw["attention"] = canonical_text(raw["attention"])
    raw["position"] = canonical_text(raw["position"])
    raw["kv_dtype"] = kv_dtype_name(raw["kv_dtype"], config.codec)
    return {
        data_class: Namespace(**raw, tenant=config.tenant, data_class=data_class)
        for data_class in dict.fromkeys((config.data_class, *config.shareable_data_classes))
        if data_class in config.shareable_data_classes or data_class == config.data_class
    }


def block_layout(runner: Runner) -> BlockLayout:
    """The arena's blocks as a codec sees them."""
    layout = runner.layout
    return BlockLayout(
        layers=layout.layers,
        kv_heads=layout.kv_heads,
        block_tokens=layout.block_tokens,
        head_dim=layout.width,
        dtype=layout.dtype_name,
    )


def _manifest(runner: Runner) -> Manifest:
    template = getattr(runner.tokenizer, "chat_template", None) or ""
    versions = runner.engine_versions()
    return Manifest(
        engine=", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        connector=f"kvferry transformers on Python {platform.python_version()}",
        kvferry=__version__,
        chat_template=hashlib.sha256(str(template).encode()).hexdigest()[:16],
    )


def _measure_prefill(cache: Cache, runner: Runner, clock: Clock, chunk_tokens: int) -> None:
    """A few timed steps, so that the first requests can be priced; real ones soon outweigh them."""
    sizes = (chunk_tokens, max(8, chunk_tokens // 8), chunk_tokens)
    span = runner.new_span(sum(sizes))
    for size in sizes:
        context = span.length
        ids = [(7 * (context + i) + 1) % runner.vocabulary for i in range(size)]
        began = clock.now()
        runner.prefill_chunk(span, ids)
        cache.estimates.prefill_step(size, context, clock.now() - began)
