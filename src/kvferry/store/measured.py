"""A tier whose every transfer is reported: what the estimators and metrics learn from.

Owns the stopwatch and the count of transfers in flight. Refuses to know what is done with the figures.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from ..clock import Clock
from .arrival import Arrived, get_telling
from .hints import Hints, put_hinted
from .tier import Got, Put, Tier, Vector
from .wrapper import Wrapper

__all__ = ["Measured", "Observe"]


class Observe(Protocol):
    """Hears of each `find`, `get`, `put` and `drop` after it ended, in the thread that made it."""

    def __call__(
        self, operation: str, values: int, moved_bytes: int, seconds: float, in_flight: float, statuses: bytes
    ) -> None:
        """`moved_bytes` crossed (OK reads, STORED writes); `in_flight` is the mean number of reads and
        writes at work on this tier meanwhile, this one included; `statuses` is empty when the call raised.
        """


class Measured(Wrapper):
    """Times `tier` and tells `observe`."""

    def __init__(self, tier: Tier, observe: Observe, clock: Clock) -> None:
        super().__init__(tier)
        self._observe = observe
        self._flight = _Flight(clock)

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        start = self._flight.clock.now()
        statuses = b""
        try:
            statuses = self.tier.find(keys, timeout_seconds)
        finally:
            seconds = self._flight.clock.now() - start
            self._observe("find", len(keys), 0, seconds, float(self._flight.now_flying), statuses)
        return statuses

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        ticket = self._flight.enter()
        statuses = b""
        try:
            statuses = get_telling(self.tier, keys, into, timeout_seconds, arrived)
        finally:
            seconds, in_flight = self._flight.leave(ticket)
            moved = _moved(into, statuses, Got.OK)
            self._observe("get", len(keys), moved, seconds, in_flight, statuses)
        return statuses

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        ticket = self._flight.enter()
        statuses = b""
        try:
            statuses = put_hinted(
                self.tier, keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints
            )
        finally:
            seconds, in_flight = self._flight.leave(ticket)
            moved = _moved(values, statuses, Put.STORED)
            self._observe("put", len(keys), moved, seconds, in_flight, statuses)
        return statuses

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        start = self._flight.clock.now()
        dropped = self.tier.drop(keys, timeout_seconds, ghost=ghost)
        seconds = self._flight.clock.now() - start
        self._observe("drop", dropped, 0, seconds, float(self._flight.now_flying), b"")
        return dropped


class _Flight:
    """The time integral of how many transfers are at work, so that a mean over any interval is exact."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now_flying = 0
        self._lock = threading.Lock()
        self._area = 0.0
        self._since = clock.now()

    def enter(self) -> tuple[float, float]:
        with self._lock:
            now = self._advance()
            self.now_flying += 1
            return now, self._area

    def leave(self, ticket: tuple[float, float]) -> tuple[float, float]:
        with self._lock:
            now = self._advance()
            flying = float(self.now_flying)
            self.now_flying -= 1
            seconds = now - ticket[0]
            return seconds, (self._area - ticket[1]) / seconds if seconds > 0 else flying

    def _advance(self) -> float:
        now = self.clock.now()
        self._area += (now - self._since) * self.now_flying
        self._since = now
        return now


def _moved(vectors: Sequence[Vector], statuses: bytes, good: int) -> int:
    return sum(
        sum(part.nbytes for part in vector)
        for vector, status in zip(vectors, statuses, strict=False)
        if status == good
    )
