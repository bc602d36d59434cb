"""Host memory of this process as a tier.

Owns the index over an arena, the pins that keep a block in place while it is copied, and the memory of what
was evicted. Copies run outside the lock. Refuses to know which block is worth keeping: a policy says so.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...clock import Clock, MonotonicClock
from ...errors import ConfigError, TierUnavailable
from ..arrival import Arrived
from ..bloom import GhostFilter, pair_bytes
from ..eviction import LRU, EvictionPolicy
from ..tier import Entry, Found, Got, Kind, Put, Usage, Vector
from .arena import Arena, copy_parts

__all__ = ["MemoryTier"]


@dataclass(slots=True)
class _Value:
    size: int
    slots: list[int]
    expires_at: float | None
    pins: int = 0
    visible: bool = False
    gone: bool = False
    """Dropped while it was being copied: its slots go back with the last pin."""


class MemoryTier:
    """Blocks in `capacity_bytes` of memory, never more.

    `slot_bytes` is the unit of room; None learns it from the first value. `policy` makes the eviction
    policy; `ghost_keys` evicted keys (at least) stay recognisable, for 4 bytes each; a stranger passes for
    evicted with a probability of at most about 1 %.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        slot_bytes: int | None = None,
        policy: Callable[[], EvictionPolicy] = LRU,
        ghost_keys: int = 1 << 16,
        ttl_seconds: float | None = None,
        name: str = "memory",
        kind: Kind = Kind.HOST,
        clock: Clock | None = None,
    ) -> None:
        if capacity_bytes < 1:
            raise ConfigError(f"capacity of tier {name} must be at least 1 byte, not {capacity_bytes}")
        if slot_bytes is not None and not 1 <= slot_bytes <= capacity_bytes:
            raise ConfigError(
                f"slot_bytes of tier {name} must lie between 1 and its capacity, not {slot_bytes}"
            )
        self.name = name
        self.kind = kind
        self._clock = clock or MonotonicClock()
        self._ttl_seconds = ttl_seconds
        self._lock = threading.Lock()
        self._arena = Arena(capacity_bytes, slot_bytes)
        self._values: dict[bytes, _Value] = {}
        self._policy = policy()
        self._expiries: list[tuple[float, bytes]] = []
        self._ghosts = GhostFilter(memoryview(bytearray(pair_bytes(ghost_keys))), ghost_keys)
        self._leases: dict[bytes, tuple[bytes, float]] = {}
        self._notes: dict[str, bytes] = {}
        self._used = self._evicted = 0
        self._closed = False

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            self._expire(now)
            found = bytearray(len(keys))
            absent = []
            for i, key in enumerate(keys):
                value = self._values.get(key)
                if value is not None and value.visible:
                    found[i] = Found.HELD
                elif key in self._leases and self._leases[key][1] > now:
                    found[i] = Found.LEASED
                else:
                    absent.append(i)
            for i, known in zip(absent, self._ghosts.knows([keys[i] for i in absent]), strict=True):
                if known:
                    found[i] = Found.GHOST
            return bytes(found)

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        return self.get_telling(keys, into, timeout_seconds, _unheard)

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        deadline = self._clock.now() + timeout_seconds
        statuses = bytearray(len(keys))
        pinned: list[tuple[int, _Value]] = []
        with self._lock:
            if self._closed:
                return bytes([Got.FAILED]) * len(keys)
            self._expire(self._clock.now())
            for i, (key, parts) in enumerate(zip(keys, into, strict=True)):
                value = self._values.get(key)
                if value is None or not value.visible:
                    statuses[i] = Got.ABSENT
                elif value.size != sum(part.nbytes for part in parts):
                    statuses[i] = Got.CORRUPT
                else:
                    value.pins += 1
                    pinned.append((i, value))
            # The head of a chain is the last to go: without it the tail is worth nothing.
            for i, _ in reversed(pinned):
                self._policy.touch(keys[i])
        try:
            for i, value in pinned:
                if self._clock.now() > deadline:
                    statuses[i] = Got.LATE
                else:
                    copy_parts(into[i], self._arena.pieces(value.slots, value.size))
                    statuses[i] = Got.OK
                    arrived(i)
        finally:
            with self._lock:
                for _, value in pinned:
                    self._unpin(value)
        return bytes(statuses)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
    ) -> bytes:
        deadline = self._clock.now() + timeout_seconds
        ttl = self._ttl_seconds if ttl_seconds is None else ttl_seconds
        statuses = bytearray([Put.FAILED]) * len(keys)
        pending: list[tuple[int, _Value]] = []
        with self._lock:
            self._check_open()
            now = self._clock.now()
            self._expire(now)
            for i, (key, parts) in enumerate(zip(keys, values, strict=True)):
                if key in self._values:
                    statuses[i] = Put.HELD
                    continue
                size = sum(part.nbytes for part in parts)
                slots = self._room(size)
                if slots is None:
                    statuses[i] = Put.FULL
                    continue
                value = _Value(size, slots, None if ttl is None else now + ttl, pins=1)
                self._values[key] = value
                self._used += size
                pending.append((i, value))
        try:
            for i, value in pending:
                if self._clock.now() <= deadline:
                    copy_parts(self._arena.pieces(value.slots, value.size), values[i])
                    statuses[i] = Put.STORED
        finally:
            with self._lock:
                for i, value in reversed(pending):
                    self._publish(keys[i], value, whole=statuses[i] == Put.STORED)
        return bytes(statuses)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        with self._lock:
            self._check_open()
            dropped = [key for key in keys if self._remove(key)]
            if ghost:
                self._ghosts.add(dropped)
            return len(dropped)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            self._leases = {name: lease for name, lease in self._leases.items() if lease[1] > now}
            taken = bytearray(len(names))
            for i, name in enumerate(names):
                if self._leases.get(name, (holder, 0.0))[0] == holder:
                    self._leases[name] = (holder, now + ttl_seconds)
                    taken[i] = 1
            return bytes(taken)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        with self._lock:
            for name in names:
                if name in self._leases and self._leases[name][0] == holder:
                    del self._leases[name]

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        with self._lock:
            self._check_open()
            return self._notes.get(name)

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        with self._lock:
            self._check_open()
            if if_absent and name in self._notes:
                return False
            self._notes[name] = bytes(value)
            return True

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        with self._lock:
            self._check_open()
            return sorted(name for name in self._notes if name.startswith(prefix))

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        with self._lock:
            self._check_open()
            self._expire(self._clock.now())
            entries = [Entry(key, value.size) for key, value in self._values.items() if value.visible]
        return iter(entries)

    def usage(self, timeout_seconds: float) -> Usage:
        with self._lock:
            self._check_open()
            self._expire(self._clock.now())
            slots = sum(len(value.slots) for value in self._values.values())
            return Usage(
                capacity_bytes=self._arena.capacity_bytes,
                used_bytes=self._used,
                blocks=sum(value.visible for value in self._values.values()),
                evicted_blocks=self._evicted,
                fragmentation_bytes=slots * self._arena.slot_bytes - self._used,
            )

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                # Copies under way keep the mapping alive through their views; then it is unmapped.
                self._values.clear()
                self._arena = Arena(self._arena.capacity_bytes, None)

    def _room(self, size: int) -> list[int] | None:
        """Slots for a value, evicting as needed; None when it cannot be made to fit."""
        needed = self._arena.slots_for(size)
        if needed is None:
            return None
        while self._arena.free_slots < needed:
            victim = self._policy.choose(self._pinned)
            if victim is None:
                return None
            self._remove(victim)
            self._ghosts.add([victim])
            self._evicted += 1
        return self._arena.take(needed)

    def _pinned(self, key: bytes) -> bool:
        return self._values[key].pins > 0

    def _publish(self, key: bytes, value: _Value, *, whole: bool) -> None:
        if whole and not self._closed:
            value.visible = True
            self._policy.insert(key, value.size)
            if value.expires_at is not None:
                heapq.heappush(self._expiries, (value.expires_at, key))
        elif self._values.get(key) is value:
            del self._values[key]
            self._used -= value.size
            value.gone = True
        self._unpin(value)

    def _remove(self, key: bytes) -> bool:
        value = self._values.get(key)
        if value is None or not value.visible:
            return False
        del self._values[key]
        self._policy.remove(key)
        self._used -= value.size
        value.gone = True
        if value.pins == 0:
            self._arena.give(value.slots)
        return True

    def _unpin(self, value: _Value) -> None:
        value.pins -= 1
        if value.gone and value.pins == 0 and not self._closed:
            self._arena.give(value.slots)

    def _expire(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            _, key = heapq.heappop(self._expiries)
            value = self._values.get(key)
            # The key may have been dropped and stored anew meanwhile, with another life.
            if value is not None and value.expires_at is not None and value.expires_at <= now:
                self._ghosts.add([key])
                self._remove(key)

    def _check_open(self) -> None:
        if self._closed:
            raise TierUnavailable(f"tier {self.name} is closed")


def _unheard(index: int) -> None:
    """For readers that wait for the whole batch."""
