"""From what the cache and the tiers report to metrics, so that every executor counts alike.

Owns three translations: a settled request's `Account`, the calls that a measured tier reports, and what a
tier evicts. Decides nothing and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cache.account import Account
from ..cache.commands import Evicted
from ..gate.facts import Arm
from ..outcomes import Outcome
from ..store.measured import Observe
from ..store.tier import Found, Kind, OnEvicted, Put
from .metrics import Metrics
from .names import Choice, Path

__all__ = ["mourner", "observer", "path_of", "record_account"]

_HIT_PATHS = {
    Kind.HOST: Path.HOST_HIT,
    Kind.DISK: Path.DISK_HIT,
    Kind.P2P: Path.POOL_HIT,
    Kind.POOL: Path.POOL_HIT,
}


def path_of(account: Account, tiers: Sequence[Kind]) -> Path:
    """Which distribution a settled request belongs to. `tiers` are the cache's, nearest first."""
    if account.fallback is not None:
        return Path.FALLBACK
    read = [run.tier for run in account.loads if run.good > 0]
    if read and account.ledger.get(Outcome.HANDOFF):
        return Path.HANDOFF
    if read:
        return _HIT_PATHS[tiers[max(read)]]
    priced = account.decision is not None and account.decision.candidate_bytes > 0
    # What was on offer may also be declined without a price: no memory, not allowed, never in time.
    if priced or account.ledger.get(Outcome.DECLINED):
        return Path.DECLINED
    return Path.LOCAL_HIT if account.ledger.get(Outcome.DEVICE_HIT) else Path.COLD


def record_account(metrics: Metrics, account: Account, tiers: Sequence[Kind]) -> None:
    """Count one settled request: ledger, decision, path, and what the choice saved or lost."""
    metrics.booked(account.ledger)
    decision = account.decision
    if decision is not None and account.arm is not Arm.OFF:
        choice = Choice.LOAD if decision.loads else Choice.RECOMPUTE
        metrics.decided(choice, decision.reason, account.arm)
        if account.lost_seconds > 0.0:
            metrics.lost(choice, account.lost_seconds)
        if decision.loads and account.fallback is None and account.load_seconds is not None:
            metrics.saved(max(0.0, decision.recompute_seconds - account.load_seconds))
    if account.fallback is not None:
        metrics.fell_back(account.fallback)
    if account.ready_seconds is not None:
        metrics.ready(path_of(account, tiers), account.ready_seconds)


def observer(metrics: Metrics, tier: Kind) -> Observe:
    """What a measured tier calls after each operation."""

    def observe(
        operation: str, values: int, moved_bytes: int, seconds: float, in_flight: float, statuses: bytes
    ) -> None:
        match operation:
            case "find":
                metrics.probed(tier, seconds, blocks=values, found=statuses.count(Found.HELD))
            case "get":
                metrics.loaded(tier, seconds, moved_bytes)
            case "put":
                metrics.stored(tier, seconds, moved_bytes)
                if Put.FULL in statuses:
                    metrics.refused(tier, statuses.count(Put.FULL))

    return observe


def mourner(metrics: Metrics, deliver: Callable[[Evicted], None], tier: Kind) -> OnEvicted:
    """What a tier calls when it has evicted blocks; `deliver` takes the news to the cache."""

    def mourn(keys: Sequence[bytes], read: bytes, unread_bytes: int) -> None:
        if unread_bytes:
            metrics.never_read(tier, unread_bytes)
        deliver(Evicted(keys, read))

    return mourn
