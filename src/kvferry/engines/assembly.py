"""From settings to the parts that every engine's ferry is made of: machine, publication, records, threads."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ..cache.commands import Completion
from ..cache.machine import Cache
from ..cache.settings import CacheSettings
from ..clock import Clock
from ..config import Config
from ..cost.profile import Profile, decode_profile, encode_profile
from ..executors.aliens import Aliens
from ..executors.shelf import Shelf
from ..executors.threads import ThreadExecutor
from ..gate.facts import GateTerms
from ..gate.publication import Publication
from ..outcomes import Outcome
from ..runs.decisions import DecisionRecord
from ..runs.lines import LineWriter
from ..store.codec import Codec

__all__ = [
    "cache_settings",
    "publication_of",
    "save_profile",
    "sink_of",
    "start_from_profile",
    "thread_executor",
]

log = logging.getLogger(__name__)


def cache_settings(
    config: Config, tiers: tuple[Outcome, ...], *, block_tokens: int, bytes_per_token: int, ranks: int = 1
) -> CacheSettings:
    """The machine's settings from the user's. `bytes_per_token` is what moves, of all ranks together.

    `tiers` has, for each tier, what a hit there is booked under.
    """
    gate, limits, timeouts = config.gate, config.limits, config.timeouts
    return CacheSettings(
        block_tokens=block_tokens,
        bytes_per_token=bytes_per_token,
        tiers=tiers,
        ranks=ranks,
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
        handoff_seconds=timeouts.handoff,
        lease_seconds=timeouts.lease,
        ttl_seconds=config.ttl,
        touches_in_pool=config.touches == "pool" and config.publish == "second-touch",
    )


def publication_of(config: Config) -> Publication:
    """What is worth publishing, as the settings say."""
    # Touches that the pool counts are filtered where the blocks are stored.
    pooled = config.touches == "pool" and config.publish == "second-touch"
    return Publication("all" if pooled else config.publish, config.shareable_data_classes)


def start_from_profile(config: Config, cache: Cache, shelf: Shelf) -> bool:
    """Take over what an earlier process has measured; False where no profile is named, or none is there."""
    if config.profile is None or not Path(config.profile).exists():
        return False
    profile = decode_profile(Path(config.profile).read_bytes(), config.profile)
    cache.estimates.prefill = profile.prefill_model()
    cache.estimates.interference = profile.interference_model()
    cache.estimates.legs = [profile.leg_model(kind.value) for kind in shelf.kinds]
    return True


def save_profile(config: Config, cache: Cache, shelf: Shelf, *, replica: str, namespace: str) -> None:
    """Keep what was measured for the next process, where the settings name a file for it."""
    if config.profile is None:
        return
    profile = Profile.of(
        host=replica,
        namespace=namespace,
        prefill=cache.estimates.prefill,
        legs={kind.value: leg for kind, leg in zip(shelf.kinds, cache.estimates.legs, strict=True)},
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


def sink_of(config: Config) -> Callable[[DecisionRecord], None] | None:
    """Where settled requests are written; None where the settings name no folder."""
    if config.record is None:
        return None
    folder = Path(config.record)
    folder.mkdir(parents=True, exist_ok=True)
    return LineWriter(folder / "decisions.jsonl").append


def thread_executor(
    config: Config,
    shelf: Shelf,
    deliver: Callable[[Completion], None],
    *,
    clock: Clock,
    replica: str,
    aliens: Aliens | None,
    codec: Codec | None,
) -> ThreadExecutor:
    """Threads over this shelf, as many and with the limits that the settings name."""
    return ThreadExecutor(
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
        codec=codec,
    )
