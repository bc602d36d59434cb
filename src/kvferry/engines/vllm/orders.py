"""What the scheduler's side of the connector tells the workers in a step, and what they answer.

Plain data that travels between processes. An order names blocks by their hashes and by where they lie in the
engine's paged cache; each rank makes its own keys of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from ...cache.commands import LoadDone, Staged, StoreDone
from .mirror import Changes

__all__ = ["AuditDone", "GroupShape", "Hello", "Orders", "Report", "Run", "StoreTerms", "WorkerDone"]


class AuditDone(msgspec.Struct, frozen=True):
    """How far the pool's block is from ours; None where it could not be read or compared."""

    op: int
    rank: int
    error: float | None


WorkerDone = LoadDone | StoreDone | Staged | AuditDone


class Run(msgspec.Struct, frozen=True):
    """Blocks `[start, start + len(hashes))` of one request, in one namespace."""

    op: int
    rid: str
    start: int
    hashes: tuple[bytes, ...]
    digests: tuple[tuple[bytes, ...], ...]
    """The namespace of each group, for each rank."""
    block_ids: tuple[tuple[int, ...], ...]
    """For each group, the engine's block for each of the hashes; 0 where the group has none."""
    timeout_seconds: float
    tier: int = -1
    """Which tier to load from."""


class StoreTerms(msgspec.Struct, frozen=True):
    """How a run is to be published; see `cache.commands.Store`."""

    run: Run
    lease_seconds: float
    ttl_seconds: float | None
    idle_seconds: float | None
    worth_seconds: tuple[float, ...]
    touched_only: bool
    keys_only: bool


@dataclass
class Orders(KVConnectorMetadata):
    """One step's orders. Loads of one request come in one step, and are answered together."""

    step: int
    loads: list[Run] = field(default_factory=list)
    stores: list[StoreTerms] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    audits: list[Run] = field(default_factory=list)
    """Single blocks of the pool to be compared with ours."""
    pool_rate: float | None = None
    """Bytes a second that an experiment allows the pool's link; None for no limit."""
    refusals: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    """Requests that wait for a load that will not begin, and the blocks that it would have filled."""


@dataclass
class Report(KVConnectorWorkerMetadata):
    """What has ended on the ranks since the last step, and how long this step's pass took."""

    step: int
    seconds: float
    done: list[WorkerDone] = field(default_factory=list)
    host: list[Changes] = field(default_factory=list)
    """What has changed in each worker's host memory, where the scheduler cannot look into it."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        """The slowest rank's time; everybody's answers."""
        if not isinstance(other, Report):
            raise TypeError(f"a report of kvferry's workers cannot be joined with {type(other).__name__}")
        return Report(
            max(self.step, other.step),
            max(self.seconds, other.seconds),
            [*self.done, *other.done],
            [*self.host, *other.host],
        )


class GroupShape(msgspec.Struct, frozen=True):
    """One KV cache group as a rank lays it out."""

    block_bytes: int
    fingerprint: str
    implementation: str
    """Attention backends of its layers."""


@dataclass
class Hello(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler's side before the first request."""

    groups: tuple[GroupShape, ...]
    why_not: str = ""
    """Why this worker cannot map its cache; empty when it can."""
