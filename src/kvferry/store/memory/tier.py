"""Host memory of this process as a tier.

Owns the index over an arena, the pins that keep a block in place while it is copied, and the memory of what
was evicted. Copies run outside the lock. Refuses to know which block is worth keeping (a policy says so) and
how much memory there is (`pressure` says so).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...clock import Clock, MonotonicClock
from ...errors import ConfigError, TierUnavailable
from ..arrival import Arrived
from ..bloom import GhostFilter, pair_bytes
from ..evicted import Evictions
from ..eviction import EvictionPolicy, Evictor, policy_named
from ..hints import Hints
from ..tier import Entry, Found, Got, Kind, OnEvicted, Put, Usage, Vector
from .arena import Arena, copy_parts
from .leases import Leases
from .lives import Life, Lives
from .room import ReadRoom, machine_room
from .shrink import Shrinker
from .watch import watch

__all__ = ["MemoryTier"]

_NEVER = float("inf")


@dataclass(slots=True)
class _Value:
    size: int
    slots: list[int]
    life: Life
    worth_seconds: float | None
    pins: int = 0
    visible: bool = False
    gone: bool = False
    """Dropped while it was being copied: its slots go back with the last pin."""


class MemoryTier:
    """Blocks in `capacity_bytes` of memory, never more, and less while memory is short.

    `slot_bytes` is the unit of room; None learns it from the first value. `policy` names an eviction policy
    (`store/eviction`), or makes one. `unread_seconds` is how long a block may wait for its first read.
    `ghost_keys` evicted keys (at least) stay recognisable, for 4 bytes each; a stranger passes for evicted
    with a probability of at most about 1 %. `room` reads the memory limit every `watch_seconds`, once there
    is something to give up (None: nobody looks, call `relieve`). `on_evicted` hears of blocks that the tier
    dropped, `on_resized` of the bytes it might take before and may take now.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        slot_bytes: int | None = None,
        policy: str | Callable[[], EvictionPolicy] = "lru",
        ghost_keys: int = 1 << 16,
        ttl_seconds: float | None = None,
        unread_seconds: float | None = None,
        room: ReadRoom | None = machine_room,
        watch_seconds: float | None = 1.0,
        on_evicted: OnEvicted | None = None,
        on_resized: Callable[[int, int], None] | None = None,
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
        make = policy_named(policy, f"policy of tier {name}") if isinstance(policy, str) else policy
        self.name = name
        self.kind = kind
        self._clock = clock or MonotonicClock()
        self._ttl_seconds = ttl_seconds
        self._unread_seconds = _NEVER if unread_seconds is None else unread_seconds
        self._lock = threading.Lock()
        self._arena = Arena(capacity_bytes, slot_bytes)
        self._values: dict[bytes, _Value] = {}
        self._evictor = Evictor(make())
        self._lives = Lives()
        self._ghosts = GhostFilter(memoryview(bytearray(pair_bytes(ghost_keys))), ghost_keys)
        self._leases = Leases()
        self._notes: dict[str, bytes] = {}
        self._used = self._unread = 0
        self._evictions = Evictions(on_evicted)
        self._closed = False
        self._read_room = room
        self._shrinker = Shrinker(name, self._arena, self._turn, self._evict, on_resized)
        self._watch_seconds = watch_seconds if room is not None else None
        self._end_watch: Callable[[], None] | None = None

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        with self._turn() as now:
            found = bytearray(len(keys))
            absent = []
            for i, key in enumerate(keys):
                value = self._values.get(key)
                if value is not None and value.visible:
                    found[i] = Found.HELD
                elif self._leases.is_taken(key, now):
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
        try:
            with self._turn():
                for i, (key, parts) in enumerate(zip(keys, into, strict=True)):
                    value = self._values.get(key)
                    if value is None or not value.visible:
                        statuses[i] = Got.ABSENT
                    elif value.size != sum(part.nbytes for part in parts):
                        statuses[i] = Got.CORRUPT
                    else:
                        value.pins += 1
                        pinned.append((i, value))
                self._evictor.use([keys[i] for i, _ in pinned])
        except TierUnavailable:
            return bytes([Got.FAILED]) * len(keys)
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
                now = self._clock.now()
                for i, value in pinned:
                    if statuses[i] == Got.OK and not value.gone:
                        self._unread -= value.size if value.life.read_at is None else 0
                        value.life.read_at = now
                    self._unpin(value)
        return bytes(statuses)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        hints = hints or Hints()
        deadline = self._clock.now() + timeout_seconds
        ttl = self._ttl_seconds if ttl_seconds is None else ttl_seconds
        idle = _NEVER if hints.idle_seconds is None else hints.idle_seconds
        statuses = bytearray([Put.FAILED]) * len(keys)
        pending: list[tuple[int, _Value]] = []
        with self._turn() as now:
            bound = _NEVER if ttl is None else now + ttl
            for i, (key, parts) in enumerate(zip(keys, values, strict=True)):
                if key in self._values:
                    statuses[i] = Put.HELD
                    continue
                size = sum(part.nbytes for part in parts)
                slots = self._room(size)
                if slots is None:
                    statuses[i] = Put.FULL
                    continue
                worth = None if hints.worth_seconds is None else hints.worth_seconds[i]
                value = _Value(size, slots, Life(now, bound, idle, self._unread_seconds), worth, pins=1)
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
                self._publish(keys, pending, statuses, hints.after)
        return bytes(statuses)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        with self._turn():
            dropped = [key for key in keys if self._remove(key)]
            if ghost:
                self._ghosts.add(dropped)
            return len(dropped)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        with self._turn() as now:
            return self._leases.take(names, holder, now, now + ttl_seconds)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        with self._lock:
            self._leases.give_back(names, holder)

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        with self._turn():
            return self._notes.get(name)

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        with self._turn():
            if if_absent and name in self._notes:
                return False
            self._notes[name] = bytes(value)
            return True

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        with self._turn():
            return sorted(name for name in self._notes if name.startswith(prefix))

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        with self._turn():
            return iter(
                [
                    Entry(key, value.size, value.life.read_at is not None)
                    for key, value in self._values.items()
                    if value.visible
                ]
            )

    def usage(self, timeout_seconds: float) -> Usage:
        with self._turn():
            arena = self._arena
            slots = sum(len(value.slots) for value in self._values.values())
            # Slots lose what a value does not fill, and the arena what is less than a slot.
            remainder = arena.capacity_bytes - arena.slots * arena.slot_bytes if arena.slots else 0
            return Usage(
                capacity_bytes=arena.capacity_bytes,
                used_bytes=self._used,
                blocks=sum(value.visible for value in self._values.values()),
                unread_bytes=self._unread,
                evicted_blocks=self._evictions.blocks,
                evicted_unread_blocks=self._evictions.unread_blocks,
                evicted_unread_bytes=self._evictions.unread_bytes,
                active_decode_bytes=0,
                reserved_bytes=arena.retired_slots * arena.slot_bytes,
                fragmentation_bytes=slots * arena.slot_bytes - self._used + remainder,
            )

    def relieve(self) -> None:
        """Look at the memory limit: shrink when it is near, grow back a step when it is not."""
        self._shrinker.look(self._read_room, self._clock)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                # Copies under way keep the mapping alive through their views; then it is unmapped.
                self._values.clear()
                self._arena = Arena(self._arena.capacity_bytes, None)
        if self._end_watch is not None:
            self._end_watch()

    @contextmanager
    def _turn(self) -> Iterator[float]:
        """The lock, lives ended, and what was evicted meanwhile told behind it. The time now."""
        try:
            with self._lock:
                if self._closed:
                    raise TierUnavailable(f"tier {self.name} is closed")
                now = self._clock.now()
                self._end_lives(now)
                yield now
        finally:
            self._evictions.tell()

    def _room(self, size: int) -> list[int] | None:
        """Slots for a value, evicting as needed; None when it cannot be made to fit."""
        needed = self._arena.slots_for(size)
        if needed is None:
            return None
        if self._end_watch is None and self._watch_seconds is not None:
            self._end_watch = watch(self.relieve, self._watch_seconds)
        while self._arena.free_slots < needed:
            if not self._evict():
                return None
        return self._arena.take(needed)

    def _evict(self) -> bool:
        """Evict one value; False when nothing may go."""
        victim = self._evictor.choose(self._pinned)
        if victim is None:
            return False
        self._mourn(victim)
        return True

    def _mourn(self, key: bytes) -> bytes | None:
        """Drop a stored value of the tier's own accord; the key before it, if that is a tail now."""
        value = self._values[key]
        self._ghosts.add([key])
        self._evictions.note(key, value.size, read=value.life.read_at is not None)
        return self._take_out(key, value)

    def _pinned(self, key: bytes) -> bool:
        return self._values[key].pins > 0

    def _publish(
        self,
        keys: Sequence[bytes],
        pending: Sequence[tuple[int, _Value]],
        statuses: bytearray,
        after: bytes | None,
    ) -> None:
        fresh = []
        for i, value in pending:
            if statuses[i] == Put.STORED and not self._closed:
                value.visible = True
                self._unread += value.size
                fresh.append((keys[i], value.size, value.worth_seconds))
                self._lives.add(keys[i], value.life)
            elif self._values.get(keys[i]) is value:
                del self._values[keys[i]]
                self._used -= value.size
                value.gone = True
        self._evictor.insert(keys, fresh, after)
        for _, value in pending:
            self._unpin(value)

    def _remove(self, key: bytes) -> bool:
        value = self._values.get(key)
        if value is None or not value.visible:
            return False
        self._take_out(key, value)
        return True

    def _take_out(self, key: bytes, value: _Value) -> bytes | None:
        del self._values[key]
        self._used -= value.size
        self._unread -= value.size if value.life.read_at is None else 0
        value.gone = True
        if value.pins == 0:
            self._arena.give(value.slots)
        return self._evictor.remove(key)

    def _unpin(self, value: _Value) -> None:
        value.pins -= 1
        if value.gone and value.pins == 0 and not self._closed:
            self._arena.give(value.slots)

    def _end_lives(self, now: float) -> None:
        """Drop what is over, a chain from its tail; unread heads wait for what continues them."""
        due = {
            key: life
            for key, life in self._lives.due(now)
            if (value := self._values.get(key)) is not None and value.life is life
        }
        tails = [key for key in due if due[key].bound_at <= now or not self._evictor.is_continued(key)]
        while tails:
            key = tails.pop()
            if due.pop(key, None) is not None:
                before = self._mourn(key)
                if before in due:
                    tails.append(before)
        for key, life in due.items():
            self._lives.add(key, life, now + min(life.idle_seconds, life.unread_seconds) / 8)


def _unheard(index: int) -> None:
    """For readers that wait for the whole batch."""
