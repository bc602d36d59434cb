"""Builds kvferry for one embedded engine from its settings: tiers, namespaces, cache, executor, records."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ... import __version__
from ...cache.commands import Evicted
from ...cache.machine import Cache
from ...cache.settings import CacheSettings
from ...clock import Clock
from ...config import Config, resolve_secret
from ...cost.profile import Profile, decode_profile, encode_profile
from ...errors import EngineError
from ...executors.aliens import Aliens
from ...executors.membership import Membership, Standing
from ...executors.shelf import Shelf, open_shelf
from ...executors.threads import ThreadExecutor
from ...gate.facts import GateTerms
from ...gate.publication import Publication
from ...keys.namespace import Manifest, Namespace, canonical_text
from ...keys.pool import PoolKeys, secret_of
from ...runs.decisions import DecisionRecord
from ...runs.lines import LineWriter
from ...store.backoff import State
from ...store.codec import BlockLayout, bytes_per_token, kv_dtype_name, open_codec
from ...telemetry.accounts import mourner, observer
from ...telemetry.metrics import open_metrics
from ...telemetry.spans import open_spans
from ...telemetry.traces import RecordedTraces
from .ferry import Ferry
from .runner import Runner

__all__ = ["block_layout", "build_ferry", "cache_settings", "namespaces_of"]

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
    cache = Cache(cache_settings(config, runner, shelf), _publication(config))
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
    names = _tier_names(shelf)
    if config.profile is not None and Path(config.profile).exists():
        _start_from(cache, decode_profile(Path(config.profile).read_bytes(), config.profile), names)
    else:
        _measure_prefill(cache, runner, clock, chunk_tokens)
    ferry = Ferry(
        config=config,
        cache=cache,
        shelf=shelf,
        membership=membership,
        keys={name: PoolKeys(space.digest(), secret) for name, space in spaces.items()},
        executor=lambda deliver: ThreadExecutor(
            shelf.tiers,
            deliver,
            clock=clock,
            holder=hashlib.blake2b(replica.encode(), digest_size=8).digest(),
            load_threads=config.limits.threads,
            store_threads=config.limits.replica_stores,
            pool_loads=config.limits.pool_loads,
            publish_bytes=config.limits.publish_bytes,
            slot_seconds=config.timeouts.load,
            aliens=aliens,
            codec=open_codec(config.codec, block_layout(runner)),
        ),
        clock=clock,
        metrics=metrics,
        replica=replica,
        chunk_tokens=chunk_tokens,
        sink=_sink(config),
        traces=RecordedTraces(open_spans(required=True), shelf.kinds) if config.spans else None,
        on_close=lambda cache: _save_profile(config, cache, replica, digest.hex(), names),
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


def cache_settings(config: Config, runner: Runner, shelf: Shelf) -> CacheSettings:
    """The machine's settings from the user's."""
    gate, limits, timeouts = config.gate, config.limits, config.timeouts
    return CacheSettings(
        block_tokens=config.block_tokens,
        bytes_per_token=bytes_per_token(config.codec, block_layout(runner)),
        tiers=shelf.outcomes,
        mode=gate.mode,
        terms=GateTerms(
            policy=gate.policy,
            objective=gate.objective,
            margin_seconds=gate.margin,
            margin_share=gate.margin_share,
            load_quantile=gate.load_quantile,
            recompute_quantile=gate.recompute_quantile,
        ),
        canary_share=gate.canary_share,
        holdout_share=gate.holdout_share,
        explore_share=gate.explore_share,
        auto_off=gate.auto_off,
        replica_loads=limits.replica_loads,
        new_replica_loads=min(limits.new_replica_loads, limits.replica_loads),
        growth_per_load=limits.growth_per_load,
        replica_stores=limits.replica_stores,
        probe_seconds=timeouts.probe,
        load_seconds=timeouts.load,
        store_seconds=timeouts.store,
        lease_seconds=timeouts.lease,
        ttl_seconds=config.ttl,
        touches_in_pool=config.touches == "pool" and config.publish == "second-touch",
    )


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


def _publication(config: Config) -> Publication:
    # Touches that the pool counts are filtered where the blocks are stored.
    pooled = config.touches == "pool" and config.publish == "second-touch"
    return Publication("all" if pooled else config.publish, config.shareable_data_classes)


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


def _tier_names(shelf: Shelf) -> list[str]:
    return [kind.value for kind in shelf.kinds]


def _start_from(cache: Cache, profile: Profile, names: list[str]) -> None:
    cache.estimates.prefill = profile.prefill_model()
    cache.estimates.interference = profile.interference_model()
    cache.estimates.legs = [profile.leg_model(name) for name in names]


def _save_profile(config: Config, cache: Cache, replica: str, namespace: str, names: list[str]) -> None:
    if config.profile is None:
        return
    profile = Profile.of(
        host=replica,
        namespace=namespace,
        prefill=cache.estimates.prefill,
        legs=dict(zip(names, cache.estimates.legs, strict=True)),
        interference=cache.estimates.interference,
    )
    path = Path(config.profile)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_bytes(encode_profile(profile))
        partial.replace(path)
    except OSError as error:
        log.warning("profile: cannot write %s: %s", path, error.strerror)


def _sink(config: Config) -> Callable[[DecisionRecord], None] | None:
    if config.record is None:
        return None
    folder = Path(config.record)
    folder.mkdir(parents=True, exist_ok=True)
    return LineWriter(folder / "decisions.jsonl").append
