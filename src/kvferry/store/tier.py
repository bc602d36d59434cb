"""The contract of a tier: a place that holds blocks by key.

A tier moves opaque values made of parts (a frame header and a payload, say): reading scatters a value
into the caller's buffers, writing gathers it from them, so that no block is copied in Python. All calls
are batches and thread-safe, and none may run past its `timeout_seconds` by more than a scheduling delay.
A tier knows nothing of namespaces, checksums or decisions; `store/framed.py` adds the frame.

Failure: `find`, `put`, `drop`, `lease` and the notes raise `TierTimeout` or `TierUnavailable` when the
tier as a whole did not answer. `get` never raises for that: it answers per key, since the leading blocks
that did arrive may be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum
from typing import Protocol, runtime_checkable

import msgspec

__all__ = ["Entry", "Found", "Got", "Kind", "OnEvicted", "Put", "Tier", "Usage", "Vector"]

Vector = Sequence[memoryview]
"""The parts of one value, in order; each a C-contiguous byte view, writable when read into."""


class Kind(StrEnum):
    """What a tier is, in vLLM's source words; metrics are labelled with it."""

    HOST = "host"
    DISK = "disk"
    P2P = "p2p"
    POOL = "pool"


class Found(IntEnum):
    """What `find` says of one key; one byte a block, so that scans run at C speed."""

    ABSENT = 0
    GHOST = 1
    """Absent now, but it was held once (published, then evicted). May err, never the other way round."""
    LEASED = 2
    """Absent, and another process holds the lease to publish it."""
    ALIEN = 3
    """Absent for us, but held under another namespace."""
    HELD = 4


class Got(IntEnum):
    """What became of one key of a `get`."""

    OK = 0
    ABSENT = 1
    CORRUPT = 2
    """The value's length or frame is not what it should be."""
    ALIEN = 3
    """A sound frame of another namespace or another key."""
    FAILED = 4
    LATE = 5


class Put(IntEnum):
    """What became of one key of a `put`."""

    STORED = 0
    HELD = 1
    """Already there: nothing was written."""
    FULL = 2
    FAILED = 3


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier holds, and what its capacity is really worth. Unknown terms are None, never guessed."""

    capacity_bytes: int | None
    """The physical capacity, as configured."""
    used_bytes: int | None
    blocks: int | None
    unread_bytes: int | None = None
    """Held now, and never read so far."""
    evicted_blocks: int | None = None
    """Dropped by the tier itself: for room, at the end of a life, or unread for too long."""
    evicted_unread_blocks: int | None = None
    """Those of them that nobody ever read."""
    evicted_unread_bytes: int | None = None
    """What was published, dropped by the tier and never read: writing it was for nothing."""
    active_decode_bytes: int | None = None
    """Capacity that running requests occupy; 0 where no request can."""
    reserved_bytes: int | None = None
    """Capacity that is set aside, for instance given back to a machine that runs out of memory."""
    fragmentation_bytes: int | None = None
    """Capacity that is lost between values."""

    @property
    def effective_bytes(self) -> int | None:
        """C_physical - C_active_decode - C_reserved - C_fragmentation; None where one is unknown."""
        taken = (self.active_decode_bytes, self.reserved_bytes, self.fragmentation_bytes)
        known = [term for term in taken if term is not None]
        if self.capacity_bytes is None or len(known) < len(taken):
            return None
        return self.capacity_bytes - sum(known)


class Entry(msgspec.Struct, frozen=True):
    """One stored value, as `scan` reports it."""

    key: bytes
    value_bytes: int
    read: bool | None = None
    """Whether it was ever read; None where the tier does not know."""


class OnEvicted(Protocol):
    """Hears what a tier dropped by itself, after it did, in the thread that made it do so."""

    def __call__(self, keys: Sequence[bytes], read: bytes, unread_bytes: int) -> None:
        """`read` has one byte a key, 1 where somebody read it; `unread_bytes` is the size of the others.

        Called without a lock of the tier; must not block.
        """


@runtime_checkable
class Tier(Protocol):
    """A place that holds values by key. Every method may be called from any thread."""

    @property
    def name(self) -> str:
        """What the tier is called in messages."""

    @property
    def kind(self) -> Kind:
        """What it is, for metrics and for the ledger."""

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        """One `Found` byte per key, in one round trip. Does not count as a use of the block."""

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        """Read values straight into buffers; one `Got` byte per key.

        A value whose length differs from the sum of its parts is CORRUPT, and its buffers hold no
        promise. Reading marks the block as used.
        """

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
    ) -> bytes:
        """Write values that are not there yet; one `Put` byte per key.

        A value is visible whole or not at all.

        `ttl_seconds` is an upper bound of its life; None means the tier's own. The keys of a batch are taken
        for blocks of one chain in order: no block goes before one that continues it. A tier that evicts by
        itself may take one more keyword, `hints` (`store/hints.py`); callers ask through `put_hinted`.
        """

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        """Remove; how many were there. With `ghost` they stay recognisable as evicted."""

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        """Try to take each name for `ttl_seconds`; one byte per name, 1 where `holder` has it now."""

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        """Give back leases that `holder` has; others are left alone."""

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        """A small document beside the blocks (manifests, probes); never evicted."""

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        """Write a note; False when `if_absent` and it was there."""

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        """Names of the notes that begin with `prefix`, sorted."""

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        """Every stored value; for reading commands, not for the hot path."""

    def usage(self, timeout_seconds: float) -> Usage:
        """What the tier holds now."""

    def close(self) -> None:
        """Give back sockets, threads and memory. Calling it twice is fine."""
