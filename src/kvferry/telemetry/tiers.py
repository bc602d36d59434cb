"""What the tiers of a process are worth now, asked when somebody looks.

Owns the question to each tier and its translation to metrics. Asking is a call like any other: a tier that
rests after a failure refuses it at once, and the first question after the rest finds out whether it is back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StoreError
from ..store.backoff import BackedOff, State
from ..store.tier import Kind, Tier
from .metrics import Metrics

__all__ = ["record_tiers", "record_tiers_gone"]


def record_tiers(metrics: Metrics, tiers: Sequence[Tier], timeout_seconds: float) -> None:
    """Show state, back-off, capacity and use of each tier; takes `timeout_seconds` for each at most."""
    for tier in tiers:
        capacity_bytes = used_bytes = None
        try:
            usage = tier.usage(timeout_seconds)
        except StoreError:
            # Why is told by the log of the tier; here it is enough that it did not answer.
            up = False
        else:
            up = True
            capacity_bytes, used_bytes = usage.capacity_bytes, usage.used_bytes
        resting = 0.0
        if isinstance(tier, BackedOff):
            up, resting = tier.state is State.UP, tier.resting_seconds
        metrics.tier_state(tier.kind, up=up, backoff_seconds=resting)
        metrics.tier_usage(tier.kind, capacity_bytes=capacity_bytes, used_bytes=used_bytes)


def record_tiers_gone(metrics: Metrics, kinds: Sequence[Kind]) -> None:
    """Nothing will ask these tiers any more: what they last said is not true for ever."""
    for kind in kinds:
        metrics.tier_state(kind, up=False)
        metrics.tier_usage(kind, capacity_bytes=None, used_bytes=None)
