"""A tier from four methods: read, write, delete and name whole values.

Owns what such a store lacks: lives, leases, notes, and the memory of what was held. A subclass says how the
bytes are kept, in about forty lines (examples/plugin_tier.py). Values pass through Python objects, so it is
slower than a tier that reads straight into the caller's buffers; it refuses to evict.

    block/<key hex>     16 bytes (when its life ends, wall seconds, 0 never; spare), then the value
    lease/<name hex>    16 bytes (when it ends; spare), then the holder
    note/<name hex>     the note

What was held is remembered by each process for itself: what it wrote and what it saw.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

from ..clock import Clock, MonotonicClock
from ..errors import StoreError, TierFull, TierTimeout
from .bloom import GhostFilter, pair_bytes
from .tier import Entry, Found, Got, Kind, Put, Usage, Vector

__all__ = ["SimpleTier"]

_END = Struct("<d8x")


class SimpleTier(ABC):
    """A `Tier` over whole values with names: letters, digits, and one `/`.

    The four methods may be called from any thread, at the same time. They raise `TierFull` when there is no
    room, `TierTimeout` or `TierUnavailable` when the store does not answer.
    """

    def __init__(
        self, name: str, kind: Kind, *, clock: Clock | None = None, ghost_keys: int = 1 << 16
    ) -> None:
        self.name, self.kind = name, kind
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._seen = GhostFilter(memoryview(bytearray(pair_bytes(ghost_keys))), ghost_keys)

    @abstractmethod
    def read(self, name: str, limit: int | None) -> bytes | None:
        """The value, or its first `limit` bytes; None when it is not there."""

    @abstractmethod
    def write(self, name: str, value: bytes, *, if_absent: bool) -> bool:
        """Store a value, visible whole or not at all; False when `if_absent` and it was there."""

    @abstractmethod
    def delete(self, name: str) -> bool:
        """Remove a value; whether it was there."""

    @abstractmethod
    def names(self, prefix: str) -> Iterable[tuple[str, int]]:
        """Names that begin with `prefix`, each with the size of its value."""

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        deadline = self._deadline(timeout_seconds)
        return bytes(self._found(key, deadline) for key in keys)

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        deadline = self._clock.now() + timeout_seconds
        statuses = bytearray([Got.LATE]) * len(keys)
        for i, (key, parts) in enumerate(zip(keys, into, strict=True)):
            if self._clock.now() > deadline:
                break
            try:
                statuses[i] = self._get(key, parts)
            except TierTimeout:
                break
            except StoreError:
                statuses[i] = Got.FAILED
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
        end = _END.pack(0.0 if ttl_seconds is None else self._clock.wall() + ttl_seconds)
        statuses = bytearray([Put.FAILED]) * len(keys)
        for i, (key, parts) in enumerate(zip(keys, values, strict=True)):
            if self._clock.now() > deadline:
                break
            try:
                statuses[i] = self._put(key, b"".join([end, *parts]))
            except TierFull:
                statuses[i] = Put.FULL
            except StoreError:
                if Put.STORED not in statuses:
                    raise
                break
        return bytes(statuses)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        deadline = self._deadline(timeout_seconds)
        dropped = 0
        for key in keys:
            name = _block(key)
            held = self._alive(name, deadline) is not None
            if held and ghost:
                self._remember(key)
            dropped += self.delete(name) and held
        return dropped

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        deadline = self._deadline(timeout_seconds)
        value = _END.pack(self._clock.wall() + ttl_seconds) + holder
        taken = bytearray(len(names))
        with self._lock:
            for i, name in enumerate(map(_lease, names)):
                there = self._alive(name, deadline)
                if there is None:
                    # One that is over is in the way. Two processes that both see it, one of them slow, may
                    # both have it then: that costs work done twice, never a wrong block.
                    self.delete(name)
                mine = there is not None and there[_END.size :] == holder
                taken[i] = self.write(name, value, if_absent=not mine) if there is None or mine else False
        return bytes(taken)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        deadline = self._deadline(timeout_seconds)
        with self._lock:
            for name in map(_lease, names):
                there = self._alive(name, deadline)
                if there is not None and there[_END.size :] == holder:
                    self.delete(name)

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        return self.read(_note(name), None)

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        return self.write(_note(name), bytes(value), if_absent=if_absent)

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        names = (name for name, _ in self.names(_note(prefix)))
        return sorted(bytes.fromhex(name.partition("/")[2]).decode() for name in names)

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        for name, size in self.names("block/"):
            yield Entry(bytes.fromhex(name.partition("/")[2]), size - _END.size)

    def usage(self, timeout_seconds: float) -> Usage:
        sizes = [size for _, size in self.names("block/")]
        return Usage(capacity_bytes=None, used_bytes=sum(sizes), blocks=len(sizes))

    def close(self) -> None:  # noqa: B027 - not abstract: most stores have nothing to close
        """Nothing to give back, unless a subclass has something."""

    def _found(self, key: bytes, deadline: float) -> Found:
        if self._alive(_block(key), deadline) is not None:
            self._remember(key)
            return Found.HELD
        if self._alive(_lease(key), deadline) is not None:
            return Found.LEASED
        with self._lock:
            return Found.GHOST if self._seen.knows([key])[0] else Found.ABSENT

    def _get(self, key: bytes, parts: Vector) -> Got:
        value = self.read(_block(key), None)
        if value is None or self._is_over(value):
            return Got.ABSENT
        if len(value) - _END.size != sum(part.nbytes for part in parts):
            return Got.CORRUPT
        at = _END.size
        for part in parts:
            part[:] = value[at : at + part.nbytes]
            at += part.nbytes
        self._remember(key)
        return Got.OK

    def _put(self, key: bytes, value: bytes) -> Put:
        name = _block(key)
        there = self.read(name, _END.size)
        if there is not None and self._is_over(there):
            self.delete(name)
        stored = self.write(name, value, if_absent=True)
        self._remember(key)
        return Put.STORED if stored else Put.HELD

    def _remember(self, key: bytes) -> None:
        with self._lock:
            self._seen.add([key])

    def _alive(self, name: str, deadline: float) -> bytes | None:
        """The end and, of a lease, the holder; None when it is not there or over."""
        if self._clock.now() > deadline:
            raise TierTimeout(f"tier {self.name}: no time was left")
        value = self.read(name, None if name.startswith("lease/") else _END.size)
        return None if value is None or self._is_over(value) else value

    def _is_over(self, value: bytes) -> bool:
        # Shorter is not ours: it is there, and a read will find it corrupt.
        return len(value) >= _END.size and 0.0 < _END.unpack_from(value)[0] <= self._clock.wall()

    def _deadline(self, timeout_seconds: float) -> float:
        return self._clock.now() + timeout_seconds


def _block(key: bytes) -> str:
    return f"block/{key.hex()}"


def _lease(name: bytes) -> str:
    return f"lease/{name.hex()}"


def _note(name: str) -> str:
    return f"note/{name.encode().hex()}"
