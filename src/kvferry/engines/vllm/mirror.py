"""Host memory of workers, as the scheduler's side sees it from another process.

A worker in a process of its own keeps blocks in its own host memory, which no look-up of the scheduler's can
reach. So the worker tells with each step which keys came and went, and the scheduler keeps a set of them.
It may be a step old: a load that finds a block gone falls short, and the rest is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ...store.hints import Hints
from ...store.tier import Entry, Found, Got, Kind, OnEvicted, Put, Tier, Usage, Vector
from ...store.wrapper import Wrapper

__all__ = ["Changes", "HostChanges", "MirroredTier", "ToldTier"]

Changes = tuple[list[bytes], list[bytes]]
"""Keys that came, and keys that went."""
_MOST_GONE = 1 << 17


class HostChanges:
    """On the worker's side: what has changed between two steps. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[bytes, bool] = {}

    def came(self, keys: Sequence[bytes]) -> None:
        """These keys are there now."""
        with self._lock:
            self._last.update(dict.fromkeys(keys, True))

    def went(self, keys: Sequence[bytes]) -> None:
        """These are not."""
        with self._lock:
            self._last.update(dict.fromkeys(keys, False))

    def take(self) -> Changes:
        """What has changed since the last call; of a key, only how it stands now."""
        with self._lock:
            last, self._last = self._last, {}
        came = [key for key, there in last.items() if there]
        return came, [key for key, there in last.items() if not there]

    def telling(self, then: OnEvicted) -> OnEvicted:
        """Hear of evictions, and pass them on."""

        def evicted(keys: Sequence[bytes], read: bytes, unread_bytes: int) -> None:
            self.went(keys)
            then(keys, read, unread_bytes)

        return evicted


class ToldTier(Wrapper):
    """On the worker's side: the tier itself, whose changes are told."""

    def __init__(self, tier: Tier, changes: HostChanges) -> None:
        super().__init__(tier)
        self._changes = changes

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        """As the tier's; keys that are there afterwards are told."""
        statuses = super().put(keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)
        there = (Put.STORED, Put.HELD)
        self._changes.came([key for key, status in zip(keys, statuses, strict=True) if status in there])
        return statuses

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        """As the tier's; what was dropped is told."""
        self._changes.went(keys)
        return super().drop(keys, timeout_seconds, ghost=ghost)


class MirroredTier:
    """On the scheduler's side: what the workers have told. It answers look-ups; workers do the rest."""

    kind = Kind.HOST
    name = "memory"

    def __init__(self) -> None:
        self._held: set[bytes] = set()
        self._gone: dict[bytes, None] = {}

    def apply(self, changes: Changes) -> None:
        """A worker's changes."""
        came, went = changes
        self._held.difference_update(went)
        self._held.update(came)
        self._gone.update(dict.fromkeys(went))
        while len(self._gone) > _MOST_GONE:
            self._gone.pop(next(iter(self._gone)))

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        """One `Found` byte a key."""
        held, gone = self._held, self._gone
        return bytes(
            Found.HELD if key in held else Found.GHOST if key in gone else Found.ABSENT for key in keys
        )

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        """Forget: the block is not to be found again."""
        before = len(self._held)
        self._held.difference_update(keys)
        return before - len(self._held)

    def usage(self, timeout_seconds: float) -> Usage:
        """How many blocks it is; workers know the bytes."""
        return Usage(capacity_bytes=None, used_bytes=None, blocks=len(self._held))

    def close(self) -> None:
        """Nothing is open."""

    # What follows is asked of the tier in the worker's process, never of this one.

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        """Nothing can be read here."""
        return bytes([Got.ABSENT]) * len(keys)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
    ) -> bytes:
        """Nothing can be written here."""
        return bytes([Put.FAILED]) * len(keys)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        """Nobody else is here."""
        return b"\x01" * len(names)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        """Nothing was taken."""

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        """There are none."""
        return None

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        """There are none."""
        return False

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        """There are none."""
        return []

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        """The keys; sizes are not known here."""
        return iter(Entry(key, 0) for key in sorted(self._held))
