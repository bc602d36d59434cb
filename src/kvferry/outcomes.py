"""What became of a prompt token. One vocabulary for ledger, metrics, records and reports.

Every token of every prompt ends in exactly one outcome; the outcomes of a prompt sum to its length.
Hits say where the KV came from (vLLM's source words); the rest say why a token was computed again.
Each producer states its subset: `CACHE_OUTCOMES` for a live cache, everything for the simulator.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["CACHE_OUTCOMES", "HITS", "RECOMPUTE_CAUSES", "Outcome"]


class Outcome(StrEnum):
    """Where the KV of a prompt token came from, or why it was computed."""

    DEVICE_HIT = "device_hit"
    """The engine's own prefix cache held it: a local hit."""
    HOST_HIT = "host_hit"
    """Loaded from host memory."""
    DISK_HIT = "disk_hit"
    """Loaded from a local disk."""
    POOL_HIT = "pool_hit"
    """Loaded from the pool that replicas share."""
    HANDOFF = "handoff"
    """Handed over by the replica that did the prefill of this very request; never a prefix hit."""
    ABORTED = "aborted"
    """The request ended before its prompt was ready."""
    NEVER_PUBLISHED = "never_published"
    """No tier has ever held it."""
    EVICTED = "evicted"
    """A tier held it once and dropped it."""
    INCOMPATIBLE = "incompatible"
    """Held, but under a namespace that is not ours."""
    CORRUPT = "corrupt"
    """Held, but its frame failed verification."""
    FAILED = "failed"
    """The tier failed while looking or loading."""
    LATE = "late"
    """The tier was still at work when the deadline passed."""
    DECLINED = "declined"
    """Held and loadable, but the gate chose to recompute."""
    PARTIAL_BLOCK = "partial_block"
    """Behind the last full block: no cache can hold it."""
    NOT_CACHEABLE = "not_cacheable"
    """Caching was off for it, or the engine has to compute it (the last prompt token)."""
    PLACEMENT = "placement"
    """Another replica held it locally (simulator and gateway only)."""
    LOST_NODE = "lost_node"
    """It was on a storage node that went away (simulator only)."""


HITS = frozenset({Outcome.DEVICE_HIT, Outcome.HOST_HIT, Outcome.DISK_HIT, Outcome.POOL_HIT, Outcome.HANDOFF})
RECOMPUTE_CAUSES = frozenset(set(Outcome) - HITS - {Outcome.ABORTED})
CACHE_OUTCOMES = frozenset(set(Outcome) - {Outcome.PLACEMENT, Outcome.LOST_NODE})
