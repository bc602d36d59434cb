"""What the cache asks of its executor, what it hears back, and what it tells the engine.

Commands carry runs of blocks, `keys[start:stop]`, over the request's own key list, never one object per
block; a run is sliced only where it crosses a process boundary. A command that goes elsewhere carries a
remaining budget in seconds, not a point in time, since clocks differ between hosts.

The life of an operation: emitted with a unique `op`, answered by exactly one completion per rank. `Cancel`
asks for the answer now: once it is acknowledged, nothing will be written to the destination any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol, runtime_checkable

import msgspec

from ..outcomes import Outcome

__all__ = [
    "TIER",
    "Again",
    "BlockMemory",
    "Cancel",
    "Command",
    "Completion",
    "Drop",
    "Evicted",
    "Free",
    "Legs",
    "Load",
    "LoadDone",
    "Loaded",
    "News",
    "Probe",
    "ProbeDone",
    "Staged",
    "StagedMemory",
    "Status",
    "Store",
    "StoreDone",
]


class Status(IntEnum):
    """One byte per block in a probe's answer; `TIER + t` means that tier `t` holds it on every rank."""

    ABSENT = 0
    GHOST = 1
    LEASED = 2
    ALIEN = 3
    FAILED = 4
    """The tier that might hold it did not answer."""
    TIER = 16


TIER = int(Status.TIER)
"""The same as a plain number, for scans."""


class BlockMemory(Protocol):
    """Memory for a request's blocks, lent by the engine to a load or a store."""

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """One contiguous byte view per block of `[start, stop)`, counted from the prompt's first block.

        Memory that is only staging may lend the same bytes again at the next call by the same thread.
        """


@runtime_checkable
class StagedMemory(BlockMemory, Protocol):
    """Block memory whose views are staging: what has arrived is moved on from there."""

    def arrived(self, block: int) -> None:
        """The view of `block` is whole and verified. Called in the loading thread, before the next read."""


class Probe(msgspec.Struct, frozen=True):
    """Which of these blocks are held, and where?"""

    op: int
    rid: str
    keys: Sequence[bytes]
    hashes: Sequence[bytes] | None
    """Block hashes beside the keys, with which blocks of other namespaces are recognised."""
    start: int
    stop: int
    timeout_seconds: float
    namespace: bytes = b""
    keys_only: bool = False
    """Count marks as blocks: in shadow mode nothing is stored, but hits shall be real."""


class Load(msgspec.Struct, frozen=True):
    """Read `keys[start:stop]` from one tier into the engine's memory."""

    op: int
    rid: str
    tier: int
    keys: Sequence[bytes]
    start: int
    stop: int
    dest: BlockMemory
    timeout_seconds: float
    namespace: bytes = b""
    """Digest that every frame must bear."""


class Store(msgspec.Struct, frozen=True):
    """Publish `keys[start:stop]` from the engine's memory, under a lease per chain."""

    op: int
    rid: str
    keys: Sequence[bytes]
    start: int
    stop: int
    source: BlockMemory
    timeout_seconds: float
    lease_seconds: float
    namespace: bytes = b""
    ttl_seconds: float | None = None
    keys_only: bool = False
    """Leave a mark that the block would have been stored, without its bytes: shadow mode."""
    worth_seconds: Sequence[float] = ()
    """For each block of the run, the prefill that reading it saves: tiers may keep by it."""
    idle_seconds: float | None = None
    """How long a block may lie unread, as reuse in its data class suggests; None for no end."""
    touched_only: bool = False
    """Store only blocks that some replica has asked for before; the executor counts touches in the pool."""


class Drop(msgspec.Struct, frozen=True):
    """Remove blocks that must not be found again; no answer is awaited."""

    keys: Sequence[bytes]
    start: int
    stop: int
    tier: int
    cause: Outcome


class Cancel(msgspec.Struct, frozen=True):
    """Answer operation `op` now; what arrives later must not reach the engine's memory."""

    op: int


Command = Probe | Load | Store | Drop | Cancel


class Legs(msgspec.Struct, frozen=True):
    """Where the seconds of one operation went. Overlapping legs are not to be added up."""

    queue_seconds: float = 0.0
    """From emission to the first byte of work: an executor's queue."""
    wire_seconds: float = 0.0
    """Request sent to last byte received (verification included when it overlaps)."""
    install_seconds: float = 0.0
    """Copying into the engine's memory, when the wire did not write there."""
    bytes: int = 0
    in_flight: float = 1.0
    """Mean number of transfers on this link meanwhile, this one included."""


class ProbeDone(msgspec.Struct, frozen=True):
    """One `Status` byte for each block of the probe."""

    op: int
    status: bytes
    seconds: float = 0.0
    alien_fields: str = ""
    """Names of the namespace fields that differ, where a block is ALIEN."""
    rank: int = 0
    cause: str = ""
    """Why blocks are FAILED, in words, for the record."""


class LoadDone(msgspec.Struct, frozen=True):
    """`good` leading blocks are whole, verified and in place; also the answer to a `Cancel`."""

    op: int
    good: int
    cause: Outcome | None = None
    """Why the next block is not good: EVICTED, CORRUPT, INCOMPATIBLE, FAILED, LATE or DECLINED (a cap)."""
    legs: Legs = Legs()
    rank: int = 0
    detail: str = ""


class Staged(msgspec.Struct, frozen=True):
    """The source of a store has been copied or sent: the engine may reuse its memory."""

    op: int
    rank: int = 0


class StoreDone(msgspec.Struct, frozen=True):
    """`stored` blocks were written, `held` were there already, the rest were not written."""

    op: int
    stored: int
    stored_bytes: int = 0
    held: int = 0
    cause: Outcome | None = None
    legs: Legs = Legs()
    rank: int = 0


class Evicted(msgspec.Struct, frozen=True):
    """A tier dropped published blocks; `read` says for each (one byte) whether it was ever read."""

    keys: Sequence[bytes]
    read: bytes


Completion = ProbeDone | LoadDone | Staged | StoreDone | Evicted


class Again(msgspec.Struct, frozen=True):
    """`ask` will answer something else now."""

    rid: str


class Loaded(msgspec.Struct, frozen=True):
    """The load has ended: blocks before `end_block` are usable.

    With `safe` false the destination beyond it may still be written to: the engine must not reuse that
    memory before `Free`.
    """

    rid: str
    end_block: int
    safe: bool


class Free(msgspec.Struct, frozen=True):
    """Nothing writes to, or reads from, memory lent for this request any more."""

    rid: str


News = Again | Loaded | Free
