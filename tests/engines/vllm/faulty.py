"""A pool in this process that fails where a test wants it to, shared by every replica that names it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from kvferry.errors import TierTimeout, TierUnavailable
from kvferry.store.arrival import Arrived
from kvferry.store.hints import Hints
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Kind, Put, Tier, Vector
from kvferry.store.wrapper import Wrapper

__all__ = ["Fault", "FaultyPool", "make", "opened"]

CAPACITY_BYTES = 512 << 20
LONGEST_SECONDS = 60.0


class Fault(Enum):
    """What becomes of the read of one block; those before it are read well."""

    ABSENT = "evicted between look-up and load"
    CORRUPT = "one bit has flipped"
    FAILED = "the tier says that it failed"
    UNAVAILABLE = "the tier raises what tiers may raise"
    RAISES = "the tier raises what no tier may raise"
    HANGS = "nothing comes until the time is over"
    OVERRUNS = "nothing comes until the test lets go, whatever the time; then the rest does"


class FaultyPool(Wrapper):
    """Blocks in memory. `faults` maps keys to what their next reads meet."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(MemoryTier(capacity_bytes, kind=Kind.POOL))
        self.order: list[bytes] = []
        """Keys in the order in which they were stored."""
        self.faults: dict[bytes, Fault] = {}
        self.full = False
        self.put_seconds = 0.0
        """How long a write takes."""
        self.deaf = False
        """Look-ups time out."""
        self.reading = threading.Event()
        """Some read has met HANGS or OVERRUNS."""
        self.let_go = threading.Event()
        self.overran = threading.Event()
        """A read went on after its time."""

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        if self.deaf:
            time.sleep(timeout_seconds)
            raise TierTimeout("the pool does not answer")
        return super().find(keys, timeout_seconds)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        time.sleep(min(self.put_seconds, timeout_seconds))
        if self.full:
            return bytes([Put.FULL]) * len(keys)
        statuses = super().put(keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)
        self.order += [key for key, status in zip(keys, statuses, strict=True) if status == Put.STORED]
        return statuses

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        until = time.monotonic() + timeout_seconds
        statuses = bytearray()
        for number, (key, parts) in enumerate(zip(keys, into, strict=True)):
            fault = self.faults.get(key)
            if fault in (Fault.HANGS, Fault.OVERRUNS):
                self.reading.set()
                most = timeout_seconds if fault is Fault.HANGS else LONGEST_SECONDS
                freed = self.let_go.wait(max(0.0, most))
                if fault is Fault.HANGS and not freed:
                    return bytes(statuses) + bytes([Got.LATE]) * (len(keys) - number)
                if time.monotonic() > until:
                    self.overran.set()
            elif fault is Fault.UNAVAILABLE:
                raise TierUnavailable("the pool is gone")
            elif fault is Fault.RAISES:
                raise RuntimeError("a tier with a bug")
            elif fault is Fault.FAILED:
                return bytes(statuses) + bytes([Got.FAILED]) * (len(keys) - number)
            elif fault is Fault.ABSENT:
                statuses.append(Got.ABSENT)
                continue
            (status,) = self.tier.get([key], [parts], max(0.1, until - time.monotonic()))
            if status == Got.OK:
                if fault is Fault.CORRUPT:
                    parts[-1][100] ^= 1
                arrived(number)
            statuses.append(status)
        return bytes(statuses)

    def heal(self) -> None:
        """Everything works again."""
        self.let_go.set()
        self.faults.clear()
        self.full = self.deaf = False
        self.put_seconds = 0.0

    def damage(self, key: bytes) -> None:
        """Overwrite part of the block that is held, with numbers as good as any."""
        entry = next(entry for entry in self.tier.scan(10.0) if entry.key == key)
        value = memoryview(bytearray(entry.value_bytes))
        self.tier.get([key], [[value]], 10.0)
        value[-4096:] = b"\x40" * 4096
        self.tier.drop([key], 10.0, ghost=False)
        self.tier.put([key], [[value]], 10.0)

    @contextmanager
    def failing(self, key: bytes, fault: Fault) -> Iterator[None]:
        """The block of this key is read badly meanwhile."""
        self.reading.clear()
        self.let_go.clear()
        self.overran.clear()
        self.faults[key] = fault
        try:
            yield
        finally:
            self.heal()

    def keys(self) -> list[bytes]:
        """Of the blocks held."""
        return [entry.key for entry in self.tier.scan(10.0)]


_POOLS: dict[str, FaultyPool] = {}


class _View(Wrapper):
    """One replica's way to a pool: closing it leaves the pool to the others."""

    def close(self) -> None:
        pass


def make(name: str, capacity_bytes: int = CAPACITY_BYTES) -> FaultyPool:
    """A new, empty pool of this name."""
    pool = _POOLS[name] = FaultyPool(capacity_bytes)
    return pool


def opened(*, name: str, **_: Any) -> Tier:
    """For `plugin://` addresses."""
    return _View(_POOLS[name])
