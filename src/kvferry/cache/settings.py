"""What a cache machine is told once: sizes, tiers, limits and times. All times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..gate.facts import GateTerms
from ..outcomes import Outcome

__all__ = ["CacheSettings"]


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of one machine. The mode and the policy may be switched later, the rest may not."""

    block_tokens: int
    bytes_per_token: int
    """Of all ranks together: what a load moves."""
    tiers: tuple[Outcome, ...]
    """One per tier, nearest first: the outcome that a hit there is booked under."""
    ranks: int = 1
    mode: str = "on"
    terms: GateTerms = field(default_factory=GateTerms)
    canary_share: float = 0.05
    holdout_share: float = 0.02
    explore_share: float = 0.02
    auto_off: bool = True
    replica_loads: int = 4
    new_replica_loads: int = 1
    growth_per_load: float = 0.5
    replica_stores: int = 2
    probe_seconds: float = 0.25
    load_seconds: float = 30.0
    store_seconds: float = 60.0
    handoff_seconds: float = 5.0
    """How long a handed-over request waits for blocks that are still being published."""
    lease_seconds: float = 60.0
    ttl_seconds: float | None = None
    touches_in_pool: bool = False
    """Second touches are counted by the pool for all replicas; the publication policy is then `all` here."""
    grace_seconds: float = 0.25
    """How long after its deadline an executor may take to say how far it came."""
    patience: float = 1.25
    """A load may take so many times the longer of its own high quantile and the recompute it replaces."""
    abandon_seconds: float = 60.0
    """How long after a Cancel an answer is still waited for; then the operation is forgotten and its
    memory stays lent for ever."""
