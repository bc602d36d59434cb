"""The tiers of one replica, nearest first, as its settings describe them, each with its wrappers.

FramedTier (made per namespace by the executor)
  BackedOff      leaves a failing tier alone for a growing interval
    Measured     tells metrics what went through
      RateLimited  the pool's link: a limit in the data path, unlimited unless an experiment sets one
        the tier itself
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..clock import Clock
from ..config import Config
from ..outcomes import Outcome
from ..store.backoff import BackedOff, State
from ..store.measured import Measured, Observe
from ..store.open import open_tier
from ..store.ratelimited import RateLimited
from ..store.tier import Kind, OnEvicted, Tier

__all__ = ["Shelf", "open_pool", "open_shelf"]

_OUTCOMES = {
    Kind.HOST: Outcome.HOST_HIT,
    Kind.DISK: Outcome.DISK_HIT,
    Kind.P2P: Outcome.POOL_HIT,
    Kind.POOL: Outcome.POOL_HIT,
}


@dataclass(slots=True)
class Shelf:
    """Tiers, nearest first; `pool` and `link` are None where no pool is set."""

    tiers: list[Tier] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    pool: BackedOff | None = None
    link: RateLimited | None = None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What a hit in each tier is booked under."""
        return tuple(_OUTCOMES[kind] for kind in self.kinds)

    def close(self) -> None:
        """Close every tier."""
        for tier in self.tiers:
            tier.close()


def open_shelf(
    config: Config,
    clock: Clock,
    observe: Callable[[Kind], Observe],
    on_pool_state: Callable[[State], None],
    on_evicted: Callable[[Kind], OnEvicted],
) -> Shelf:
    """Open what the settings name: host memory, then a local disk, then the pool.

    `observe(kind)` hears of every transfer of a tier of that kind, and `on_evicted(kind)` of what this
    process evicts from it. Raises ConfigError for an address that makes no sense. A pool that does not answer
    is no error: it is left alone and tried again.
    """
    shelf = Shelf()

    def add(tier: Tier, kind: Kind) -> None:
        shelf.tiers.append(tier)
        shelf.kinds.append(kind)

    if config.host_memory:
        memory = open_tier(
            f"memory://?policy={config.eviction}",
            clock=clock,
            unread_seconds=config.unread,
            capacity_bytes=config.host_memory,
            setting="host_memory",
            on_evicted=on_evicted(Kind.HOST),
        )
        add(Measured(memory, observe(Kind.HOST), clock), Kind.HOST)
    if config.disk:
        disk = open_tier(
            config.disk,
            clock=clock,
            setting="disk",
            kind=Kind.DISK,
            unread_seconds=config.unread,
            on_evicted=on_evicted(Kind.DISK),
        )
        add(BackedOff(Measured(disk, observe(Kind.DISK), clock), clock), Kind.DISK)
    if config.pool:
        pool = open_pool(
            config.pool,
            clock,
            connect_seconds=config.timeouts.connect,
            unread_seconds=config.unread,
            on_evicted=on_evicted(Kind.POOL),
        )
        shelf.link = RateLimited(pool, None, clock)
        shelf.pool = BackedOff(
            Measured(shelf.link, observe(Kind.POOL), clock),
            clock,
            first_seconds=config.timeouts.backoff_first,
            longest_seconds=config.timeouts.backoff_most,
            on_change=on_pool_state,
        )
        add(shelf.pool, Kind.POOL)
    return shelf


def open_pool(
    url: str, clock: Clock, *, connect_seconds: float, unread_seconds: float, on_evicted: OnEvicted
) -> Tier:
    """The pool at `url`, booked as a pool even where its tier would call itself a disk or host memory.

    A server evicts by itself and tells nobody, so only tiers of this process tell `on_evicted`.
    """
    if url.startswith(("files:", "memory:")):
        return open_tier(
            url, clock=clock, kind=Kind.POOL, unread_seconds=unread_seconds, on_evicted=on_evicted
        )
    if url.startswith(("valkey:", "redis:")):
        return open_tier(url, clock=clock, connect_seconds=connect_seconds)
    return open_tier(url, clock=clock)
