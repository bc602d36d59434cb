"""A tier with a limit on how many reads and writes are at work at once.

Owns the queue in front of the tier. A call that waits longer than its timeout is answered as late.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..clock import Clock
from ..errors import ConfigError, TierTimeout
from .arrival import Arrived, get_telling
from .hints import Hints, put_hinted
from .tier import Got, Tier, Vector
from .wrapper import Wrapper

__all__ = ["Bounded"]


class Bounded(Wrapper):
    """At most `limit` of `get` and `put` at once; the rest wait within their timeout."""

    def __init__(self, tier: Tier, limit: int, clock: Clock) -> None:
        if limit < 1:
            raise ConfigError(f"the limit of concurrent operations must be at least 1, not {limit}")
        super().__init__(tier)
        self._clock = clock
        self._places = threading.BoundedSemaphore(limit)

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        left = self._enter(timeout_seconds)
        if left is None:
            return bytes([Got.LATE]) * len(keys)
        try:
            return get_telling(self.tier, keys, into, left, arrived)
        finally:
            self._places.release()

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        left = self._enter(timeout_seconds)
        if left is None:
            raise TierTimeout(f"tier {self.name}: no place for a write within {timeout_seconds:.3f} s")
        try:
            return put_hinted(self.tier, keys, values, left, ttl_seconds=ttl_seconds, hints=hints)
        finally:
            self._places.release()

    def _enter(self, timeout_seconds: float) -> float | None:
        """Take a place; the seconds left, or None when none came free."""
        start = self._clock.now()
        if not self._places.acquire(timeout=max(0.0, timeout_seconds)):
            return None
        return max(0.0, timeout_seconds - (self._clock.now() - start))
